package memory_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Println(memory.PoolReport())
	os.Exit(code)
}
