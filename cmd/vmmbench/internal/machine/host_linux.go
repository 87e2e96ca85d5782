package machine

import (
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func limits() []report.Limit {
	return []report.Limit{limit("nofile", unix.RLIMIT_NOFILE), limit("memlock", unix.RLIMIT_MEMLOCK)}
}

// limit is the soft limit of this process.
func limit(name string, which int) report.Limit {
	l := report.Limit{Name: name}
	var r unix.Rlimit
	switch err := unix.Getrlimit(which, &r); {
	case err != nil:
		l.Reason = report.Text(err.Error())
	case r.Cur == unix.RLIM_INFINITY:
		l.Reason = "unlimited"
	default:
		l.Value = &r.Cur
	}
	return l
}

func kernel() report.Text {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return report.Text(unix.ByteSliceToString(u.Release[:]))
}
