package repochecks

import (
	"bufio"
	"context"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// snippetPages are the documents whose Go is compiled as a reader would compile it: in
// a module of its own.
var snippetPages = []string{
	"README.md", "docs/guides/groups.md", "docs/start.md", "docs/guides/building.md", "docs/guides/kernels.md",
	"docs/coming-from/others.md", "docs/guides/pool.md", "docs/guides/store.md", "docs/coming-from/vineyard.md",
	"docs/coming-from/cuda.md", "docs/coming-from/cudamallocasync.md", "docs/coming-from/pytorch.md", "docs/coming-from/cuda-core.md",
	"docs/concepts.md", "docs/guides/pressure.md", "docs/guides/operations.md", "docs/guides/troubleshooting.md",
	"docs/guides/testing.md", "docs/guides/many.md", "docs/guides/libraries.md", "docs/compatibility.md", "docs/guides/metrics.md",
	"docs/reference/building.md", "docs/reference/groups.md", "docs/reference/kernels.md", "docs/reference/metrics.md",
	"docs/reference/operations.md", "docs/reference/pool.md", "docs/reference/pressure.md", "docs/reference/sharing.md",
	"docs/reference/store.md",
}

// snippet is one block of Go in a document. It is a file, which may name itself in its
// first line ("// grow/main.go"), or declarations without a package clause.
type snippet struct {
	doc  string
	line int    // of the first line of code, from 1
	file string // where it goes in the reader's module
	code string
}

// patience is how long a program may run that takes a second.
const patience = 2 * time.Minute

// prints is what a program says it prints, by lines.
var prints = regexp.MustCompile(`(?m)// prints (.*)$`)

// Go in the documents is as gofmt writes it.
func TestSnippetsAreFormatted(t *testing.T) {
	for _, s := range snippets(t) {
		formatted, err := format.Source([]byte(s.code))
		require.NoError(t, err, "%s:%d", s.doc, s.line)
		require.Equal(t, string(formatted), s.code, "%s:%d is not as gofmt writes it", s.doc, s.line)
	}
}

// Programs in the documents must compile, and run as they say.
func TestSnippets(t *testing.T) {
	testgate.Long(t)
	m := readersModule(t)
	goIn(t, m.dir, append([]string{"vet"}, m.packages()...)...)
	if runtime.GOOS != "linux" {
		t.Skip("running them needs the host driver, which is for Linux")
	}
	program := filepath.Join(t.TempDir(), "programs")
	goIn(t, m.dir, "build", "-o", program, "./"+allPrograms)
	for _, s := range m.snippets {
		switch {
		case !s.isProgram():
		case s.file == "owner/main.go": // runs beside the reader
		case s.file == "reader/main.go":
			t.Run(s.file, func(t *testing.T) { follow(t, program, s) })
		default:
			t.Run(s.file, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				out, err := exec.CommandContext(ctx, program, path.Dir(s.file)).Output()
				require.NoError(t, err)
				printsWhatItSays(t, s, string(out))
			})
		}
	}
	for _, s := range m.snippets {
		if strings.HasSuffix(s.file, "_test.go") {
			t.Run(s.file, func(t *testing.T) { goIn(t, m.dir, "test", "-vet=off", "./"+path.Dir(s.file)) })
		}
	}
}

// wrongDocs are documents that the same check must refuse, and what it says then.
var wrongDocs = map[string]string{
	"Text.\n\n```go\n// bad/main.go\npackage main\n\nfunc main() { vmm.Open() }\n```\n": ":7: undefined: vmm",
	"```go\nfunc open() (*vmm.Device, error) { return vmm.Open() }\n```\n":              ":2: not enough arguments in call to vmm.Open",
	"```go\nfunc first(v *growable.Vector[int64]) { v.Nothing() }\n```\n":               ":2: v.Nothing undefined",
}

// What does not compile is refused, with its line.
func TestSnippetsAreCompiled(t *testing.T) {
	testgate.Long(t)
	out := readersModule(t).vetOfWrong
	for doc, want := range wrongDocs {
		require.Contains(t, out, wrongDoc(doc)+want)
	}
}

// A block of Go has an end, and its fence is written as all are.
func TestFences(t *testing.T) {
	for _, doc := range []string{"```go\nfunc f() {}\n", "```Go\nfunc f() {}\n```\n", "```go\n```go\n```\n"} {
		_, err := snippetsIn("DOC.md", doc)
		require.Error(t, err, doc)
	}
}

func readDoc(t *testing.T, doc string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(doc)))
	require.NoError(t, err)
	return string(text)
}

// snippetsIn finds the blocks of Go in a document. All blocks between fences are Go.
func snippetsIn(doc, text string) (all []snippet, err error) {
	var s *snippet
	for n, line := range strings.Split(text, "\n") {
		switch {
		case s == nil && line == "```go":
			s = &snippet{doc: doc, line: n + 2}
		case s != nil && line == "```":
			s.file = s.fileName()
			all, s = append(all, *s), nil
		case strings.HasPrefix(line, "```"):
			return nil, fmt.Errorf("%s:%d: a fence that is neither ```go nor its end", doc, n+1)
		case s != nil:
			s.code += line + "\n"
		}
	}
	if s != nil {
		return nil, fmt.Errorf("%s:%d: a block without an end", doc, s.line)
	}
	return all, nil
}

// fileName is the file that the snippet goes into: the one that it names, or else one in a
// folder of its own.
func (s *snippet) fileName() string {
	first, _, _ := strings.Cut(s.code, "\n")
	if name, named := strings.CutPrefix(first, "// "); named && strings.HasSuffix(name, ".go") {
		return name
	}
	doc := strings.TrimSuffix(path.Base(s.doc), ".md")
	return fmt.Sprintf("%s%d/main.go", strings.ToLower(doc), s.line)
}

// source is the snippet as a file. Errors of the compiler name the document.
func (s *snippet) source() string {
	line := fmt.Sprintf("//line %s:%d\n", s.doc, s.line)
	if regexp.MustCompile(`(?m)^package `).MatchString(s.code) {
		return line + s.code
	}
	var imports string
	for _, p := range []string{
		"context", "errors", "fmt", "io", "net/http", "os", "reflect", "time", "unsafe",
		module + "/growable", module + "/shareable", module + "/vmm", module + "/vmm/driver", module + "/vmm/kernel",
		module + "/vmm/dlpack", module + "/vmm/memmap", module + "/vmm/pool", module + "/shareable/collective", module + "/shareable/store",
	} {
		if regexp.MustCompile(`\b` + path.Base(p) + `\.`).MatchString(s.code) {
			imports += fmt.Sprintf("import %q\n", p)
		}
	}
	return "package snippet\n" + imports + line + s.code
}

// isProgram reports whether the snippet has a main of its own.
func (s *snippet) isProgram() bool { return strings.Contains(s.code, "package main") }

// allPrograms is the folder of the one program that runs all snippets which are programs, and
// wrong that of what must not compile or be copied.
const (
	allPrograms = "all"
	wrong       = "wrong"
)

// userModule is the module of a reader who has followed the documents: its own files, and
// this module in place of the newest release. Its programs are one, which takes the name of the
// folder of one of them, so that they are linked once.
type userModule struct {
	dir        string
	snippets   []snippet
	vetOfWrong string // what vet says of what is wrong
}

// packages are the folders of all that must compile.
func (m *userModule) packages() []string {
	all := []string{"./" + allPrograms}
	for _, s := range m.snippets {
		if !s.isProgram() {
			all = append(all, "./"+path.Dir(s.file))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The module is made for the first test that asks for it, and stays until the last has ended.
var made struct {
	sync.Once
	userModule
}

func TestMain(m *testing.M) {
	code := m.Run()
	if made.dir != "" {
		_ = os.RemoveAll(made.dir)
	}
	os.Exit(code)
}

// snippets are those of all documents.
func snippets(t *testing.T) (all []snippet) {
	t.Helper()
	for _, doc := range snippetPages {
		found, err := snippetsIn(doc, readDoc(t, doc))
		require.NoError(t, err)
		all = append(all, found...)
	}
	require.NotEmpty(t, all)
	return all
}

func readersModule(t *testing.T) *userModule {
	t.Helper()
	made.Do(func() {
		made.snippets = snippets(t)
		var err error
		made.dir, err = os.MkdirTemp("", "cuvmm-reader") //nolint:usetesting // several tests use it
		require.NoError(t, err)
		made.write(t)
		out, err := goCommand(t, made.dir, "vet", "./"+wrong+"/...").CombinedOutput()
		require.Error(t, err, "vet has something to say")
		made.vetOfWrong = string(out)
	})
	require.NotEmpty(t, made.vetOfWrong, "the module could not be made")
	return &made.userModule
}

// wrongDoc is the name of a document that must be refused.
func wrongDoc(text string) string { return fmt.Sprintf("DOC%d.md", len(text)) }

func (m *userModule) write(t *testing.T) {
	write := func(name, text string) {
		file := filepath.Join(m.dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoFileExists(t, file)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	imports, cases := "", ""
	for _, s := range m.snippets {
		if s.isProgram() {
			// A package that a program can import and call.
			name := path.Dir(s.file)
			s.code = strings.Replace(s.code, "package main\n", "package "+name+"\n", 1)
			s.code = strings.Replace(s.code, "\nfunc main() {", "\nfunc Main() {", 1)
			imports += fmt.Sprintf("import %q\n", "example.com/app/"+name)
			cases += fmt.Sprintf("\tcase %q:\n\t\t%s.Main()\n", name, name)
		}
		write(s.file, s.source())
	}
	write(allPrograms+"/main.go", "package main\n\nimport \"os\"\n"+imports+
		"\nfunc main() {\n\tswitch os.Args[1] {\n"+cases+"\tdefault:\n\t\tos.Exit(2)\n\t}\n}\n")
	for text := range wrongDocs {
		found, err := snippetsIn(wrongDoc(text), text)
		require.NoError(t, err)
		write(fmt.Sprintf("%s/doc%d/main.go", wrong, len(text)), found[0].source())
	}
	write(wrong+"/copies/copies.go", copies)
	// What this module requires is known, so nothing has to be looked up.
	mod := strings.Replace(readDoc(t, "go.mod"), "module "+module, "module example.com/app", 1)
	mod += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, root(t))
	write("go.mod", mod)
	write("go.sum", readDoc(t, "go.sum"))
}

// goCommand is the go command in dir. It reaches no network.
func goCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	return cmd
}

func goIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	out, err := goCommand(t, dir, args...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// printsWhatItSays compares the output with the lines that the program promises.
func printsWhatItSays(t *testing.T, s snippet, out string) {
	t.Helper()
	promised := prints.FindAllStringSubmatch(s.code, -1)
	require.NotEmpty(t, promised, "%s does not say what it prints", s.doc)
	for _, p := range promised {
		require.Contains(t, strings.Split(out, "\n"), p[1])
	}
}

// follow runs the owner, and beside it the reader, whose output is compared. The owner
// is interrupted at the end, and must end without an error.
func follow(t *testing.T, program string, s snippet) {
	env := append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := exec.CommandContext(ctx, program, "owner")
	o.Env, o.Stderr = env, os.Stderr
	o.Cancel = func() error { return o.Process.Signal(os.Interrupt) }
	stdout, err := o.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, o.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan(), "the owner ended early") // it has published

	r := exec.CommandContext(ctx, program, "reader")
	r.Env, r.Stderr = env, os.Stderr
	out, err := r.Output()
	cancel()
	for lines.Scan() { // to the owner's end
	}
	_ = o.Wait() // it says that its context has ended
	require.NoError(t, err)
	require.Zero(t, o.ProcessState.ExitCode(), "the owner")
	printsWhatItSays(t, s, string(out))
}
