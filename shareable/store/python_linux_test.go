package store

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// readsByID is a program that reads the object of an ID, and then of some that name nothing.
const readsByID = `
import sys
sys.path.insert(0, "../../examples/python")
import cuvmm_reader as c
path, id, other = sys.argv[1:]
with c.Reader(path, id) as r:
    assert r.wait(1, 60)
    while r.sealed is None or r.length() < r.sealed:
        r.step(60)
    data = r.cupy().get() if r.backend == c.CUDA else r.bytes()
    print(r.length(), sum(data.tolist()))
number = id.partition(":")[0]
with c.Reader(path, number) as r:
    print(r.name == number)
for wrong in other, id[:-1], id + "0", id + ":", "@0" + id[1:], "@:" + id.partition(":")[2], id.replace("@", "@9999"):
    try:
        c.Reader(path, wrong).close()
        print("taken", wrong)
    except (LookupError, ValueError, c.Refused) as e:
        print(type(e).__name__)
`

// TestPythonAttachesByID: an ID that was printed finds its object from Python, and no object of
// another store.
func TestPythonAttachesByID(t *testing.T) {
	modules := "import mmap"
	if withCUDA {
		modules = "import cuda.bindings.driver, cupy"
	}
	least := "import sys; assert sys.version_info >= (3, 9);" + modules
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", least).CombinedOutput(); err != nil {
		t.Skipf("needs python3 that runs %q: %v\n%s", least, err, out)
	}
	s := listeningOn(t, testDevice(t), Options{})
	id := sealed(t, clientOn(t, testDevice(t), s), "", bytesOf(vineyardBytes))
	other := id
	other.Instance[0]++
	sum := 0
	for _, b := range bytesOf(vineyardBytes) {
		sum += int(b)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-B", "-c", modules+readsByID, s.Path(), id.String(), other.String())
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d %d\nTrue\nLookupError\n", vineyardBytes, sum)+
		"ValueError\nValueError\nValueError\nValueError\nValueError\nRefused\n", string(out))
}
