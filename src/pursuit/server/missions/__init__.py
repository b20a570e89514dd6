"""The `mission_*`, `task_*` and command tools of `pursuit serve`."""
