package store

import (
	"flag"
	"log"
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
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they compute
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m)
}
