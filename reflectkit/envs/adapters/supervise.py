"""Runs a program in a process group of its own, which ends when the program does, or when standard
input is closed, as it is when the process that started this one is killed. On Linux, so does what
has left the group. Arguments: the most memory in bytes (0: no limit), and the program with its
arguments. If there is no such program, or it cannot be executed, this one says why and ends by
SIGUSR1.
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import threading

memory, command = int(sys.argv[1]), sys.argv[2:]
PR_SET_CHILD_SUBREAPER = 36


def enter_group() -> None:
    """Called in the program's process before it begins."""
    os.setsid()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


# 1. On Linux, the program's orphans become children of this process
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
# 2. Start the program
try:
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=enter_group)
except OSError as error:
    os.write(1, f"{command[0]}: {error.strerror}\n".encode())
    if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
        signal.raise_signal(signal.SIGUSR1)
    os._exit(127)


def end_group() -> None:
    """Kill all that is left of the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def wait_for_the_end_of_input() -> None:
    """Until nobody holds the other end."""
    while os.read(0, 4096):
        pass
    end_group()


# 3. Wait for its end, or for that of the input
threading.Thread(target=wait_for_the_end_of_input, daemon=True).start()
code = program.wait()
end_group()
# 4. Kill what has left the group; only Linux has this file
with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
    while True:
        children = file.read().split()
        if not children:
            break
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        file.seek(0)
os._exit(code if code >= 0 else 128 - code)
