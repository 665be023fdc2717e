"""``rigcanary doctor``: looks at a rig as a second-hand buyer would.

A check is a function from the :class:`~agents.doctor.machine.Machine` to findings, and one line
in ``agents.doctor.table``. Checks read; they change nothing and need no root.
"""
