package repochecks

import (
	"archive/zip"
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// ours is where readers get this module from.
const ours = "https://" + module

// stay are the commands of the documents that run until they are interrupted, with the words after
// which the next command may come.
var stay = map[string]string{
	"bin/owner": "publishing at",
}

// instead is what is run for a command that this test is part of, and for one that measures for long.
// .ci/run runs the commands of a clone as they are written.
var instead = map[string]string{"make test": "make -n test", "go run ./cmd/vmmbench": "go run ./cmd/vmmbench --dry-run"}

// TestCommandsWork runs README.md and start.md: it saves their files and runs their
// commands, in the order in which a reader does, word by word. They begin with nothing published,
// and a repository to clone. Where the reader makes a module, this one comes as it does when it
// is published: from a proxy, as version v0.1.0, with the files of this folder like the repository.
func TestCommandsWork(t *testing.T) {
	testgate.Long(t)
	env := readersEnv(t)
	for doc, first := range map[string]string{"README.md": "app/main.go", "docs/start.md": ""} {
		t.Run(doc, func(t *testing.T) {
			t.Parallel()
			r := newReader(t, env)
			steps, err := stepsIn(doc, readDoc(t, doc))
			require.NoError(t, err)
			if first != "" {
				steps[0].file.file = first
			}
			r.env = append(slices.Clone(env), "GOPROXY="+unpublished(t))
			for _, s := range steps {
				if slices.ContainsFunc(s.commands, needsPublished) {
					err := r.run("go run " + module + "/cmd/vmmbench@latest")
					require.ErrorContains(t, err, "module lookup disabled", "it is not published yet")
					r.env = env
				}
				require.NoError(t, r.take(s), "%s:%d", doc, s.line)
			}
			require.Equal(t, len(env), len(r.env), "no step made a module")
			require.NotZero(t, r.ran)
			r.checkSums()
		})
	}
}

// Commands that do not work are found: without go mod tidy there are no sums, because the
// module's own folder has no package.
func TestCommandsThatFailAreFound(t *testing.T) {
	testgate.Long(t)
	r := newReader(t, readersEnv(t))
	steps, err := stepsIn("README.md", readDoc(t, "README.md"))
	require.NoError(t, err)
	steps[0].file.file = "main.go"
	require.NoError(t, r.take(steps[0]))
	for _, line := range []string{"go mod init example.com/app", "go get " + module} {
		require.NoError(t, r.take(step{commands: []string{line}}))
	}
	require.ErrorContains(t, r.take(step{commands: []string{"go run ."}}), "missing go.sum entry")

	r = newReader(t, r.env)
	require.NoError(t, r.take(step{commands: []string{"go mod init example.com/app"}}))
	require.Error(t, r.take(step{commands: []string{"go run " + module + "/cmd/vmmstored"}}))
}

// needsPublished reports whether a command makes a module, which then requires this one.
func needsPublished(command string) bool { return strings.HasPrefix(command, "go mod init") }

// step is a file that a reader saves, or commands that are run.
type step struct {
	line     int
	file     snippet
	commands []string
}

// stepsIn are the blocks of Go and the indented blocks of a document.
func stepsIn(doc, text string) (steps []step, err error) {
	files, err := snippetsIn(doc, text)
	if err != nil {
		return nil, err
	}
	blank, fenced, last := true, false, 0
	for n, line := range strings.Split(text, "\n") {
		command, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
			if fenced {
				steps = append(steps, step{line: n + 1, file: files[0]})
				files = files[1:]
			}
		case !fenced && indented && (blank || last == n-1):
			if last != n-1 {
				steps = append(steps, step{line: n + 1})
			}
			last = n
			command, _, _ = strings.Cut(command, "    #")
			s := &steps[len(steps)-1]
			s.commands = append(s.commands, strings.TrimSpace(command))
		}
		blank = line == ""
	}
	return steps, nil
}

// reader follows a document.
type reader struct {
	t   *testing.T
	env []string
	top string // where the reader began
	dir string // where the reader is
	ran int
}

func newReader(t *testing.T, env []string) *reader {
	t.Helper()
	dir := t.TempDir()
	return &reader{t: t, env: env, top: dir, dir: dir}
}

// take saves the step's file or runs its commands.
func (r *reader) take(s step) error {
	if s.file.code != "" {
		file := filepath.Join(r.dir, filepath.FromSlash(s.file.file))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(s.file.code), 0o600)
	}
	for _, line := range s.commands {
		if err := r.run(line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

// run runs a command line, and stays in the folder into which that goes.
func (r *reader) run(line string) error {
	r.ran++
	if other, is := instead[line]; is {
		line = other
	}
	if until, stays := stay[line]; stays {
		return r.start(line, until)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*patience)
	defer cancel()
	where := filepath.Join(r.t.TempDir(), "where")
	cmd := exec.CommandContext(ctx, "sh", "-ec", line+"\npwd >"+where)
	cmd.Dir, cmd.Env = r.dir, r.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	dir, err := os.ReadFile(where)
	r.dir = strings.TrimSpace(string(dir))
	return err
}

// start runs a command until the test ends, and returns when it has said a word.
func (r *reader) start(line, word string) error {
	cmd := exec.Command("sh", "-c", "exec "+line)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run does not pass on what it is sent
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	read := make(chan struct{})
	r.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		<-read
		_ = cmd.Wait() // go run says that it was interrupted
	})
	said, lines := "", bufio.NewScanner(out)
	for lines.Scan() {
		said += lines.Text() + "\n"
		if strings.Contains(lines.Text(), word) {
			go func() {
				defer close(read)
				_, _ = io.Copy(io.Discard, out)
			}()
			return nil
		}
	}
	close(read)
	return fmt.Errorf("it has ended: %s", said)
}

// checkSums compares the sums of other modules, which go does not look up in a test, with this
// module's own.
func (r *reader) checkSums() {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.top, "go.sum"))
	require.NoError(r.t, err)
	more, err := filepath.Glob(filepath.Join(r.top, "*", "go.sum"))
	require.NoError(r.t, err)
	ours := readDoc(r.t, "go.sum")
	lines := 0
	for _, file := range append(files, more...) {
		sums, err := os.ReadFile(file)
		require.NoError(r.t, err)
		for line := range strings.Lines(string(sums)) {
			if lines++; !strings.HasPrefix(line, module+" ") {
				require.Contains(r.t, ours, line)
			}
		}
	}
	require.NotZero(r.t, lines)
}

// published is the version that a reader takes.
const published = "v0.1.0"

// readersEnv is the environment of a reader, for whom the module is published with the files of
// this folder. What else it needs comes from this machine's module cache where it can, and the
// cache into which this module goes lasts as long as the test.
func readersEnv(t *testing.T) []string {
	t.Helper()
	repo, proxy := t.TempDir(), t.TempDir()
	script := `git -C "$1" ls-files -coz --exclude-standard | (cd "$1" && xargs -0 sh -c 'for f; do if [ -e "$f" ]; then echo "$f"; fi; done' sh) |
		tar -C "$1" -cf - -T - | tar -xf -
		git init -q -b main . && git add -A && git -c user.name=test -c user.email=test@example.com commit -qm test`
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script, "sh", root(t))
	cmd.Dir = repo
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	publish(t, repo, proxy)
	cache, others := goProxies(t)
	return append(os.Environ(),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+repo+".insteadOf", "GIT_CONFIG_VALUE_0="+ours,
		"GOPROXY=file://"+proxy+","+cache+","+others, "GONOSUMDB=*", // see checkSums
		"GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw -trimpath", "GOWORK=off", "XDG_RUNTIME_DIR="+t.TempDir())
}

// goProxies are this machine's module cache as a proxy, and the proxies that it asks.
func goProxies(t *testing.T) (cache, others string) {
	t.Helper()
	had, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	cache, others, _ = strings.Cut(strings.TrimSpace(string(had)), "\n")
	return "file://" + cache + "/cache/download", others
}

// unpublished is what a reader asks for modules while this one is not published: what this
// machine has in its module cache, which the build of this test has filled.
func unpublished(t *testing.T) string {
	t.Helper()
	cache, _ := goProxies(t)
	return cache + ",off"
}

// publish puts the module in a folder into that of a proxy, as go's reference describes both.
func publish(t *testing.T, repo, proxy string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	mod, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"list": published + "\n", published + ".info": `{"Version":"` + published + `"}`, published + ".mod": string(mod),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	file, err := os.Create(filepath.Join(dir, published+".zip"))
	require.NoError(t, err)
	w := zip.NewWriter(file)
	require.NoError(t, filepath.WalkDir(repo, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if d.Name() == ".git" || name != repo && err == nil { // a module of its own
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(repo, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		to, err := w.Create(module + "@" + published + "/" + filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	}))
	require.NoError(t, w.Close())
	require.NoError(t, file.Close())
}
