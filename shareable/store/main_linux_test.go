package store

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// inTime is how long a test waits for what must come, and step how often it looks.
const (
	inTime = 20 * time.Second
	step   = time.Millisecond
)

func TestMain(m *testing.M) {
	if role := os.Getenv(partVar); role != "" {
		play(role)
	}
	if path := os.Getenv(roleVar); path != "" { // a process of a test's own, which is killed
		fmt.Fprintln(os.Stderr, appendForEver(path))
		os.Exit(3)
	}
	goleak.VerifyTestMain(m)
}
