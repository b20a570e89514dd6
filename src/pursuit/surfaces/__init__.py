"""What people and programs touch: parse, one service call, render."""
