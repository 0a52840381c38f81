"""Run a program that the kernel kills when the process that started it ends.

usage: python die_with_parent.py PARENT_PID PROGRAM [ARGUMENT...]

A step between fork and the program, because setting this up in `preexec_fn` runs Python in a
fork of a process with threads, which may hang. Imports nothing of the project, to start fast.
Only Linux can do it; elsewhere the program starts all the same and may outlive its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; kept across exec


def end_with_parent(parent: int, *, number: int) -> None:
    """Have the kernel send signal `number` to this process when `parent` ends.

    Ends this process with exit code 0 when `parent` has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    # SIGKILL: a Celery worker in the middle of a task takes its time over anything gentler.
    end_with_parent(int(sys.argv[1]), number=signal.SIGKILL)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the very purpose
