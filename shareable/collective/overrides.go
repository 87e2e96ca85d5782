package collective

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
)

// overrides are variables with which NCCL makes other communicators than a program asks for: the
// two of a member have to differ in whether they block, and to share what aborts them.
var overrides = []string{"NCCL_COMM_BLOCKING", "NCCL_COMM_SPLIT_SHARE_RESOURCES"}

// confOfAllUsers is the file of NCCL's variables for all users.
const confOfAllUsers = "/etc/nccl.conf"

// checkOverrides returns vmm.ErrInvalid if one of the overrides is set, in the environment or in a
// file from which NCCL takes what is not set there. A variable that is set to nothing counts as not
// set, and NCCL does not look for it in files.
func checkOverrides(lookup func(string) (string, bool), files []string) error {
	for _, name := range overrides {
		value, set := lookup(name)
		where := "the environment"
		for i := 0; i < len(files) && !set && value == ""; i++ {
			value, where = valueIn(files[i], name), files[i]
		}
		if value != "" {
			return fmt.Errorf("%w: with %s set in %s no time limit could end a call of NCCL", vmm.ErrInvalid, name, where)
		}
	}
	return nil
}

// confFiles are the files from which NCCL takes variables: initEnv in its src/misc/param.cc. From
// 2.23 on the file NCCL_CONF_FILE replaces that of the user; older versions do not read it. Here
// both count, because the version is not known yet.
func confFiles(named, home, allUsers string) (files []string) {
	if named != "" {
		files = append(files, named)
	}
	if home != "" {
		files = append(files, filepath.Join(home, ".nccl.conf"))
	}
	return append(files, allUsers)
}

// homeDir is the user's home as NCCL finds it: in the list of users, not in HOME.
func homeDir() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.HomeDir
}

// valueIn returns the value that the file has for a variable; "" if there is none, or no file that
// can be read. NCCL reads lines of the form name=value, without spaces around the name; a line that
// begins with # is a comment.
func valueIn(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), name+"="); ok && value != "" {
			return value
		}
	}
	return ""
}
