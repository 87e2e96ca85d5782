package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// asProgram has the test's own file run as the program, so that there are real processes.
const asProgram = "TOPK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func needsLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
}

// patience bounds what takes milliseconds on an idle machine.
const patience = time.Minute

// process is the program, running.
type process struct {
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "-device", "host")...)
	cmd.Env, cmd.Stderr = append(os.Environ(), asProgram+"=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "serving ")
	require.True(t, ok, line)
	return &process{cmd, url}
}

// end sends the signal and returns how the process ended.
func (p *process) end(t *testing.T, s os.Signal) error {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
	return p.cmd.Wait()
}

// do returns what the process sent, as one line.
func (p *process) do(t *testing.T, method, path, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.url+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(b)))
}

func (p *process) post(t *testing.T, path, body string) string {
	t.Helper()
	return p.do(t, http.MethodPost, path, body)
}

// eventually waits until all processes return want for the query.
func eventually(t *testing.T, want, query string, all ...*process) {
	t.Helper()
	for _, p := range all {
		var got string
		require.Eventually(t, func() bool { got = p.post(t, "/nearest", query); return got == want },
			patience, 5*time.Millisecond, "want %s", want)
	}
}

func (p *process) following(t *testing.T) bool {
	t.Helper()
	status, body, _ := strings.Cut(p.do(t, http.MethodGet, "/stats", ""), " ")
	require.Equal(t, "200", status)
	var stats struct{ Following bool }
	require.NoError(t, json.Unmarshal([]byte(body), &stats))
	return stats.Following
}

func TestOwnerIsKilledAndStartsAgain(t *testing.T) {
	needsLinux(t)
	socket := filepath.Join(t.TempDir(), "s")
	appending := []string{"-append", "-width", "2", "-path", socket}
	const query = `{"vector":[1,1],"k":2}`

	// A reader may be there before its owner.
	a := start(t, "-path", socket)
	require.Contains(t, a.post(t, "/nearest", query), "503 ")

	owner := start(t, appending...)
	require.Equal(t, `200 {"rows":3}`, owner.post(t, "/vectors", `[[0,0],[5,5],[1,2]]`))
	b := start(t, "-path", socket)
	const before = `200 {"rows":3,"nearest":[{"row":2,"distance":1},{"row":0,"distance":2}]}`
	eventually(t, before, query, owner, a, b)
	require.True(t, a.following(t))

	// Without an owner the readers go on with what was published.
	require.Error(t, owner.end(t, syscall.SIGKILL))
	for _, reader := range []*process{a, b} {
		require.Eventually(t, func() bool { return !reader.following(t) }, patience, 5*time.Millisecond)
		require.Equal(t, before, reader.post(t, "/nearest", query))
	}

	// They attach to the next one, whose vectors may be of another width.
	appending[2] = "3"
	owner = start(t, appending...)
	require.Equal(t, `200 {"rows":1}`, owner.post(t, "/vectors", `[[1,2,3]]`))
	eventually(t, `200 {"rows":1,"nearest":[{"row":0,"distance":0}]}`, `{"vector":[1,2,3],"k":2}`, owner, a, b)

	for _, p := range []*process{owner, a, b} {
		require.NoError(t, p.end(t, syscall.SIGTERM))
	}
}

// A reader that comes late has all rows from its first query on.
func TestAttach(t *testing.T) {
	needsLinux(t)
	socket := filepath.Join(t.TempDir(), "s")
	owner := start(t, "-append", "-width", "2", "-path", socket)
	owner.post(t, "/vectors", `[[0,0],[5,5],[1,2]]`)
	dev := vmmtest.Device(t)
	for range 100 {
		s := &follower{dev: dev, path: socket}
		require.NoError(t, s.attach(t.Context()))
		require.Equal(t, 3, s.rows.Len())
		require.NoError(t, s.view.Close())
	}
}

func TestRequests(t *testing.T) {
	needsLinux(t)
	socket := filepath.Join(t.TempDir(), "s")
	owner := start(t, "-append", "-width", "2", "-path", socket)
	for _, test := range []struct{ path, body, want string }{
		{"/vectors", `[[1,2],[3]]`, "400 bad request: a vector of 1 floats, not 2"},
		{"/vectors", `[]`, `200 {"rows":0}`},
		{"/vectors", `{}`, "400 json: "},
		{"/nearest", `{"vector":[1,2],"k":1}`, `200 {"rows":0,"nearest":[]}`},
		{"/nearest", `{"vector":[1],"k":1}`, "400 bad request: a vector of 1 floats, not 2"},
		{"/nearest", `{"vector":[1,2]}`, "400 bad request: k is 0, not between 1 and 1000"},
		{"/nothing", ``, "404 "},
	} {
		require.Contains(t, owner.post(t, test.path, test.body), test.want, test.body)
	}
	reader := start(t, "-path", socket)
	require.Equal(t, "404 404 page not found", reader.post(t, "/vectors", `[[1,2]]`))
	for _, name := range []string{`"topk"`, `"used"`, `"readers"`, `"memstats"`} {
		require.Contains(t, owner.do(t, http.MethodGet, "/debug/vars", ""), name)
	}
}

// The nearest rows are those that sorting all of them finds, over several blocks.
func TestNearest(t *testing.T) {
	needsLinux(t)
	const width, count, k = 64, 10_000, 10
	rows, err := growable.NewRows[float32](vmmtest.Device(t), width, growable.RowsOptions{})
	require.NoError(t, err)
	defer rows.Close()
	random := rand.New(rand.NewPCG(1, 2))
	all, q := make([]float32, count*width), make([]float32, width)
	for i := range all {
		all[i] = random.Float32()
	}
	copy(all[77*width:78*width], all[:width]) // two rows at the same distance
	copy(q, all)
	require.NoError(t, rows.Append(all...))

	want := make([]hit, count)
	for i := range want {
		want[i] = hit{i, distance(q, all[i*width:(i+1)*width])}
	}
	sort.SliceStable(want, func(i, j int) bool { return want[i].Distance < want[j].Distance })
	got, err := nearest(rows, query{q, k})
	require.NoError(t, err)
	require.Equal(t, result{count, want[:k]}, got)
	require.Equal(t, []hit{{0, 0}, {77, 0}}, got.Nearest[:2])
}
