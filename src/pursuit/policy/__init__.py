"""Decides which calls may be sent, and determines the traits of tools."""
