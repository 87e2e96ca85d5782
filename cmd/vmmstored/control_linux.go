package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A daemon takes requests at an abstract socket, from its own user and root: those who may signal it.
// The one request is "reload". The reply is "done", or why it has failed. A request ends with its connection,
// unless it has begun.

const (
	requestReload = "reload\n"
	replyDone     = "done\n"
	requestTime   = 5 * time.Second // for a request to come, or a reply to go
	maxReply      = 64 << 10        // bytes
)

// controlName is the socket of the daemon of that process id. Process ids count in a namespace.
func controlName(pid int) string {
	namespace, _ := os.Readlink("/proc/self/ns/pid") // "pid:[4026531836]"
	return fmt.Sprintf("@vmmstored-%s-%d", namespace, pid)
}

// control has reload called for each request, until stop is called. reload says why it has failed.
func control(ctx context.Context, log *slog.Logger, reload func(context.Context) error) (stop func()) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: controlName(os.Getpid()), Net: "unix"})
	if err != nil {
		log.Warn("vmmstored reload cannot be used: send SIGHUP", "error", err)
		return func() {}
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				log.Warn("a request was not taken", "error", err)
				<-time.After(requestTime) // it passes: there are no descriptors just now
			default:
				go serveControl(ctx, log, c, reload)
			}
		}
	}()
	return func() { _ = l.Close() }
}

func serveControl(ctx context.Context, log *slog.Logger, c *net.UnixConn, reload func(context.Context) error) {
	defer c.Close() //nolint:errcheck // the reply was sent, or no one reads it
	who, err := peerOf(c)
	if err == nil && who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		err = errStranger
	}
	if err != nil {
		log.Warn("request refused", "uid", who.Uid, "pid", who.Pid, "error", err)
		return
	}
	_ = c.SetDeadline(time.Now().Add(requestTime))
	request := make([]byte, len(requestReload))
	if _, err := io.ReadFull(c, request); err != nil || string(request) != requestReload {
		return
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	_ = c.SetDeadline(time.Time{})
	go func() {
		defer gone()
		_, _ = io.Copy(io.Discard, c) // until the caller, or this function, ends it
	}()
	reply := replyDone
	if err := reload(ctx); err != nil {
		reply = err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(requestTime))
	_, _ = io.WriteString(c, reply[:min(len(reply), maxReply)])
}

var errStranger = errors.New("only the daemon's own user and root may ask")

// askReload has the daemon of that process id replace the process that serves, and waits until it has.
func askReload(ctx context.Context, pid int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: controlName(pid), Net: "unix"})
	if err != nil {
		return fmt.Errorf("process %d takes no requests: is it the daemon, and not the service manager or a server? (%w)", pid, err)
	}
	defer c.Close() //nolint:errcheck // all was read
	who, err := peerOf(c)
	if err != nil {
		return err
	}
	if int(who.Pid) != pid {
		return fmt.Errorf("process %d replies in place of process %d", who.Pid, pid)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = io.WriteString(c, requestReload)
	var reply []byte
	if err == nil {
		reply, err = io.ReadAll(io.LimitReader(c, maxReply))
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: no other server serves yet; a replacement that has begun goes on, and the daemon's log says what becomes of it", ctx.Err())
	case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), err == nil && len(reply) == 0:
		return fmt.Errorf("process %d does not reply: it takes requests from its own user and root alone, or has ended", pid)
	case err != nil:
		return err
	case string(reply) != replyDone:
		return errors.New(strings.TrimSpace(string(reply)))
	}
	return nil
}

// peerOf is the process at the other end.
func peerOf(c *net.UnixConn) (who unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	var got *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil {
		return who, controlErr
	}
	if err == nil {
		who = *got
	}
	return who, err
}
