// Command vmmstored keeps named buffers of device memory for the processes of a machine; see
// package shareable/store. It owns the memory of one device and makes no context on it, so
// no fault of a client can take the memory with it.
//
// Without a subcommand it serves until it gets SIGINT or SIGTERM. SIGHUP, or "vmmstored reload",
// replaces the process that serves by the program that is on disk now; clients go on. The exit code
// is 0 after a signal, 1 after an error, and 2 for bad usage.
package main

// Files:
//
//	main.go           main
//	man.go            main of the build that writes man pages
//	run.go            the root command, and the flags of the daemon; exit codes
//	serve.go          serve: the daemon
//	budget.go         --budget, and the command budget
//	log.go            a log that no writer waits for
//	metrics.go        metrics over HTTP
//	control_linux.go  requests to the daemon itself: reload
//	control_other.go  the same on other systems
//	client.go         the commands that are clients of a store, and their flags
//	reap_linux.go     processes that have ended and that no process waits for
//	systemd_linux.go  systemd: sockets of units, and telling it the state
//	systemd_other.go  the same on other systems
//	signals_unix.go   which signals are ignored or have a meaning
//	signals_other.go  the same on other systems
