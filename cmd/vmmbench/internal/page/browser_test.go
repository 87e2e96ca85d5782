package page

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// frame shows a page at both widths and says how wide its content is, which elements go
// beyond that and are not inside a box that scrolls, and whether pictures are shown.
const frame = `<!DOCTYPE html><meta charset="utf-8"><pre id="out"></pre>
<iframe src="page.html" width="400" height="600" style="border:0"></iframe>
<iframe src="page.html" width="1600" height="600" style="border:0"></iframe>
<script>
onload = () => {
  const out = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const d = frame.contentDocument, root = d.documentElement;
    out.push("scroll " + root.scrollWidth + " of " + root.clientWidth);
    for (const e of d.querySelectorAll("body *")) {
      const r = e.getBoundingClientRect();
      if (!e.closest(".scroll") && r.width > 0 && r.right > root.clientWidth + 1) out.push("beyond: " + e.tagName);
    }
    if ([...d.querySelectorAll("figure svg")].every(e => e.getBoundingClientRect().width > 300)) out.push("pictures");
  }
  document.getElementById("out").textContent = out.join(", ");
};
</script>`

// TestBrowser shows the page in Chromium, if there is one: nothing on the console, nothing
// that the policy of the page had to refuse, and no wider than a phone.
func TestBrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium")
	}
	dir := t.TempDir()
	page := write(t, load(t))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.html"), []byte(page), 0o600))
	out, console := show(t, browser, dir)
	require.Empty(t, console)
	require.Equal(t, "scroll 400 of 400, pictures, scroll 1600 of 1600, pictures", out)

	// What is wrong is seen: an image from elsewhere, and a table that does not scroll.
	bad := strings.Replace(page, "<main>", `<main><img src="missing.png" alt="">`, 1)
	bad = strings.ReplaceAll(bad, `class="scroll"`, `class="box"`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.html"), []byte(bad), 0o600))
	out, console = show(t, browser, dir)
	require.Contains(t, strings.Join(console, "\n"), "Content Security Policy")
	require.Contains(t, out, "beyond: TABLE")
}

// patience is how long a browser may take that does not hang.
const patience = time.Minute

// show returns what the frame says of the page, and what stands on the console.
func show(t *testing.T, browser, dir string) (out string, console []string) {
	t.Helper()
	file := filepath.Join(dir, "frame.html")
	require.NoError(t, os.WriteFile(file, []byte(frame), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--allow-file-access-from-files", "--enable-logging=stderr", "--v=0", "--window-size=1700,700",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+file)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	found := regexp.MustCompile(`(?s)<pre id="out">(.*?)</pre>`).FindSubmatch(dom)
	require.NotNil(t, found, string(dom))
	for line := range strings.Lines(stderr.String()) {
		if strings.Contains(line, "CONSOLE") {
			console = append(console, line)
		}
	}
	return string(found[1]), console
}
