package memmap_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBrowser shows the file in Chromium, if there is one, at both widths: nothing on the console,
// so nothing that the policy of the page had to refuse, and what the data say is on the page.
func TestBrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium")
	}
	m, _, awake, _ := everything(t)
	file := filepath.Join(t.TempDir(), "map.html")
	var page bytes.Buffer
	require.NoError(t, m.WriteHTML(&page))
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))
	for _, size := range []string{"400,900", "1600,900"} {
		dom, log := show(t, browser, size, file)
		for line := range strings.Lines(log) {
			require.NotContains(t, line, "CONSOLE")
		}
		for _, text := range []string{"host:0 · host memory", awake.Ptr().String(), `range "&lt;b&gt;awake&lt;/b&gt;"`, "shared with 1", "Pool p", "elsewhere", "schema_test.go", "u-legend"} {
			require.True(t, strings.Contains(dom, text), text) // the page is long
		}
	}
}

// show is what the page has become in a window of a size, and what the browser has logged.
func show(t *testing.T, browser, size, file string) (dom, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // only a browser that hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
		"--window-size="+size, "--user-data-dir="+t.TempDir(), "--virtual-time-budget=30000", "--dump-dom", "file://"+file)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	return string(out), stderr.String()
}
