package ipc

import "golang.org/x/sys/unix"

const noWait = unix.O_NONBLOCK // has a file opened without a wait for another process
