"""The final report of a mission, for people: one HTML file, or Markdown.

Both are pure functions of the report's JSON (`pursuit.report/1`) and trust no string in it.
"""
