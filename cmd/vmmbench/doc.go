// Command vmmbench measures memory that grows in place against the memory that a
// program would use otherwise. Then it does each case once more, over other data,
// and checks every byte of the result, or fewer by --verify.
//
// Without a subcommand it measures a preset, by default the quick tour: copies and growth.
// See vmmbench --help for the rest.
//
// The report goes to stdout, progress to stderr. The exit code is 0 if all passed,
// 1 if a case could not be run or a report could not be written, 2 for bad usage, 3
// if data were wrong, 4 if a comparison with an older run found what --fail-on names or a case is below
// --at-least, 77
// if this machine can do none of the cases, and 130 if the run was interrupted. An interrupted run
// writes what it has measured, and marks it.
package main

// Files:
//
//	main.go               main
//	man.go                with -tags man: writes the man pages instead
//	root.go               the commands, help, exit codes
//	settings.go           what no flag sets, and tests set otherwise
//	flags.go              flags that commands share: output, measuring, the margins of "equal"
//	filter.go             --filter: the cases whose names match; --at-least: rates that they must reach
//	signals_linux.go      ending a run by a signal
//	runner.go             runner: one command from its flags to its report; the progress that it prints
//	measuregroup.go       measuring one group of contenders, and adding its cases to the report
//	group.go              group, contender and task
//	resume.go             --resume: continuing an earlier run
//	runs.go               --runs: several runs, in turn with a baseline that is a program
//	output.go             the places that the report goes to
//	preset.go             presets: plans made of those of commands; the tour, which is the default
//	nvbandwidth.go        the cases of nvbandwidth, under its names
//	info.go               info: devices and their topology; the version
//	bw.go                 bw: copies between host and device, and on a device
//	copies.go             what bw, p2p and nvbandwidth's cases copy at once, read from words; the contender that copies
//	timer.go              timing copies by events or by the host; holding a stream back until they are queued
//	busystream.go         streams that copy beside what is measured
//	buffer.go             the memory of copies: filling, checking
//	kernels.go            kernels on a device: filling, checking, copying; a chase of pointers
//	grow.go               grow: memory that grows, step by step
//	growers.go            its contenders, by the way to grow
//	manyranges.go         grow --ranges: many small ranges
//	ops.go                ops: the driver's calls on chunks, and on other devices' access
//	p2p.go                p2p: copies between devices
//	pool.go               pool: replaying traces of allocations; pairs of alloc and free
//	share.go              share: publishing to other processes
//	sharereader.go        the reader, in a process of its own
//	readerprocess.go      the owner's end of that process
//	device.go             opening devices
//	sleep.go              sleep: Sleep and Wake, against copies of pinned memory
//	system_linux.go       threads on CPUs, mremap, processes that end with their parent, a clock they share, how wide a terminal is
//	system_other.go       stands for it on other systems, where nothing runs
//	undo.go               giving back what was taken, the last first
//	compare.go            compare, and comparing with a baseline
//	report.go             report: reports as a page of HTML, as pictures, or in another format
