//go:build cgo && linux

package nvrtc_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvrtc"
)

// compiled compiles and reports whether libnvrtc was asked to.
func compiled(t *testing.T, c *nvrtc.Compiler, fake *fakenvrtc.Library, text string, o nvrtc.Options, what ...any) (r *nvrtc.Result, asked bool) {
	t.Helper()
	before := fake.Calls("nvrtcCreateProgram")
	r, err := c.Compile(text, o)
	require.NoError(t, err, what...)
	asked = fake.Calls("nvrtcCreateProgram") > before
	require.Equal(t, !asked, r.Cached, what...)
	return r, asked
}

// theFile is the only file in a folder.
func theFile(t *testing.T, dir string) string {
	t.Helper()
	names := filesIn(t, dir)
	require.Len(t, names, 1)
	return filepath.Join(dir, names[0])
}

func TestCacheHit(t *testing.T) {
	path := fakenvrtc.Build(t)
	fake := fakenvrtc.Open(t, path)
	o, dir := keptIn(t)
	o.Expressions = []string{"scale<float>", "scale<int>"}
	text := "#warning slow\n" + source
	var first *nvrtc.Result
	for i := range 3 { // each time as another process would
		c, err := nvrtc.Open(path)
		require.NoError(t, err)
		r, asked := compiled(t, c, fake, text, o)
		require.Equal(t, i == 0, asked)
		require.NoError(t, r.CacheErr)
		if i == 0 {
			first = r
		}
		r.Cached = false
		require.Equal(t, first, r)
	}
	info, err := os.Stat(theFile(t, dir))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	c, err := nvrtc.Open(path)
	require.NoError(t, err)
	o.NoCache = true
	r, asked := compiled(t, c, fake, text, o)
	require.True(t, asked)
	require.NoError(t, r.CacheErr)
	fake.Clean()
}

// Whatever differs, the result of another compilation is not taken for this one's.
func TestCacheKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	kept := 0
	for _, version := range [][2]int{{12, 4}, {12, 5}, {13, 4}} {
		c, fake := onFake(t, fakenvrtc.Version(version[0], version[1])...)
		for _, text := range []string{source, source + " "} {
			for name, o := range variants() {
				o.Cache = &nvrtc.Cache{Dir: dir}
				_, asked := compiled(t, c, fake, text, o, name)
				require.True(t, asked, name)
				kept++
			}
		}
		for name, o := range variants() {
			o.Cache = &nvrtc.Cache{Dir: dir}
			_, asked := compiled(t, c, fake, source, o, name)
			require.False(t, asked, name)
		}
	}
	require.Len(t, filesIn(t, dir), kept)
}

// A file that is not whole and unchanged is not used, and is replaced.
func TestCacheAltered(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	o.Expressions = []string{"scale<int>"}
	want, _ := compiled(t, c, fake, source, o)
	file := theFile(t, dir)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	spoil := func(b []byte, what string) {
		require.NoError(t, os.WriteFile(file, b, 0o600))
		r, asked := compiled(t, c, fake, source, o, what)
		require.True(t, asked, what)
		require.Equal(t, want, r, what)
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, whole, now, what)
	}
	for i := range whole {
		spoil(whole[:i], fmt.Sprintf("cut at %d", i))
		flipped := append([]byte(nil), whole...)
		flipped[i] ^= 1 << (i % 8)
		spoil(flipped, fmt.Sprintf("byte %d changed", i))
	}
	spoil(append(append([]byte(nil), whole...), 0), "a byte too many")
	_, asked := compiled(t, c, fake, source, o)
	require.False(t, asked, "unspoilt it is used")

	// A whole file under another's name is not that other's.
	_, asked = compiled(t, c, fake, source+" ", o)
	require.True(t, asked)
	for _, name := range filesIn(t, dir) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), whole, 0o600))
	}
	_, asked = compiled(t, c, fake, source+" ", o)
	require.True(t, asked)
}

// What another user may have written is not used.
func TestCacheFileOfOthers(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	compiled(t, c, fake, source, o)
	file := theFile(t, dir)
	for _, mode := range []fs.FileMode{0o620, 0o602, 0o666} {
		require.NoError(t, os.Chmod(file, mode))
		_, asked := compiled(t, c, fake, source, o, mode)
		require.True(t, asked, mode)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode(), "replaced")
		require.NoError(t, os.Chmod(file, 0o644))
		_, asked = compiled(t, c, fake, source, o, mode)
		require.False(t, asked, "others may read it")
	}
	t.Run("owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to give a file away; TestOurs has the rule")
		}
		require.NoError(t, os.Chown(file, stranger, stranger))
		_, asked := compiled(t, c, fake, source, o)
		require.True(t, asked)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Zero(t, info.Sys().(*syscall.Stat_t).Uid, "replaced")
		_, asked = compiled(t, c, fake, source, o)
		require.False(t, asked)
	})
}

// What stands in a file's place and is none is not used. It is replaced if it can be.
func TestCacheFileIsNone(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	compiled(t, c, fake, source, o)
	file := theFile(t, dir)
	copied := filepath.Join(t.TempDir(), "copy")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	within := filepath.Join(dir, "copy")
	for _, name := range []string{copied, within} {
		require.NoError(t, os.WriteFile(name, whole, 0o600))
	}
	for name, put := range map[string]func() error{
		"a link to a good one":    func() error { return os.Symlink(copied, file) },
		"a link within":           func() error { return os.Symlink("copy", file) },
		"a link to nothing":       func() error { return os.Symlink("/nowhere/at/all", file) },
		"a link to itself":        func() error { return os.Symlink(file, file) },
		"an empty folder":         func() error { return os.Mkdir(file, 0o700) },
		"a pipe without a writer": func() error { return syscall.Mkfifo(file, 0o600) },
	} {
		require.NoError(t, os.Remove(file))
		require.NoError(t, put())
		r, asked := compiled(t, c, fake, source, o, name)
		require.True(t, asked, name)
		require.NoError(t, r.CacheErr, name)
		_, asked = compiled(t, c, fake, source, o, name)
		require.False(t, asked, "replaced: "+name)
		now, err := os.ReadFile(copied)
		require.NoError(t, err)
		require.Equal(t, whole, now, name)
	}

	// A folder that has something in it is not ours to delete.
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "of others"), 0o700))
	r, asked := compiled(t, c, fake, source, o)
	require.True(t, asked)
	require.Error(t, r.CacheErr)
	require.DirExists(t, filepath.Join(file, "of others"))
	require.Len(t, filesIn(t, dir), 2, "no temporary file is left")
}

// A folder to which others can write is not used, and nothing is written to it.
func TestCacheFolder(t *testing.T) {
	c, fake := onFake(t)
	top := t.TempDir()
	shared, mine, link, file := filepath.Join(top, "shared"), filepath.Join(top, "mine"), filepath.Join(top, "link"), filepath.Join(top, "file")
	for _, dir := range []string{shared, mine} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	require.NoError(t, os.Symlink(mine, link))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	refused := func(dir, want string) {
		o := nvrtc.Options{Arch: "sm_90", Cache: &nvrtc.Cache{Dir: dir}}
		for range 2 {
			r, asked := compiled(t, c, fake, source, o, dir)
			require.True(t, asked, dir)
			require.ErrorContains(t, r.CacheErr, want)
		}
	}
	for _, mode := range []fs.FileMode{0o720, 0o702, 0o777} {
		require.NoError(t, os.Chmod(shared, mode))
		refused(shared, "others may write to")
	}
	require.Empty(t, filesIn(t, shared))
	refused(link, "is a link")
	require.Empty(t, filesIn(t, mine))
	refused(file, "not a directory")
	refused(filepath.Join(file, "below"), "not a directory")

	// The same folder is used as soon as it is ours alone.
	require.NoError(t, os.Chmod(shared, 0o755))
	o := nvrtc.Options{Arch: "sm_90", Cache: &nvrtc.Cache{Dir: shared}}
	r, _ := compiled(t, c, fake, source, o)
	require.NoError(t, r.CacheErr)
	_, asked := compiled(t, c, fake, source, o)
	require.False(t, asked)

	t.Run("owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to give a folder away; TestOurs has the rule")
		}
		require.NoError(t, os.Chown(mine, stranger, stranger))
		belongs := fmt.Sprintf("belongs to user %d", stranger)
		refused(mine, belongs)
		refused(filepath.Join(mine, "new", "er"), belongs)
		require.Empty(t, filesIn(t, mine))
	})
}

// Without Dir the results are in the user's folder for such. Without a home there is
// none, which is no error.
func TestCacheDefault(t *testing.T) {
	c, fake := onFake(t)
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	for _, cache := range []*nvrtc.Cache{nil, {}, {MaxBytes: 1 << 20}} {
		r, asked := compiled(t, c, fake, source, nvrtc.Options{Arch: "sm_90", Cache: cache})
		require.Equal(t, cache == nil, asked)
		require.NoError(t, r.CacheErr)
	}
	require.FileExists(t, theFile(t, filepath.Join(home, "cuvmm", "nvrtc")))
	for _, value := range []string{"", "relative"} {
		t.Setenv("XDG_CACHE_HOME", value)
		t.Setenv("HOME", "")
		r, asked := compiled(t, c, fake, source, nvrtc.Options{Arch: "sm_90"})
		require.True(t, asked)
		require.Error(t, r.CacheErr)
	}
}

// What may read files that are not given is never kept.
func TestCacheOfIncludes(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	o.Headers = map[string]string{"given.cuh": "#include <math.h>\n"}
	r, _ := compiled(t, c, fake, source, o)
	require.EqualError(t, r.CacheErr, "not kept: what given.cuh includes is not known")
	o.Headers = map[string]string{"given.cuh": "int x;\n"}
	o.Flags = []string{"-I/usr/include"}
	r, _ = compiled(t, c, fake, source, o)
	require.EqualError(t, r.CacheErr, "not kept: what -I/usr/include includes is not known")
	o.Flags = nil
	r, _ = compiled(t, c, fake, "#include <elsewhere.h>\n", o)
	require.EqualError(t, r.CacheErr, "not kept: what kernel.cu includes is not known")
	require.Empty(t, filesIn(t, dir))
	for _, hit := range []bool{false, true} {
		r, asked := compiled(t, c, fake, "#include \"given.cuh\"\n", o)
		require.NoError(t, r.CacheErr)
		require.Equal(t, hit, !asked)
	}
}

// sizeOf is the size of the files in a folder.
func sizeOf(t *testing.T, dir string) (total uint64) {
	t.Helper()
	for _, name := range filesIn(t, dir) {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil { // others may delete it
			total += uint64(info.Size())
		}
	}
	return total
}

// The files stay within MaxBytes. What was used last stays.
func TestCacheBounded(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	text := func(i int) string { return fmt.Sprintf("%s // %04d", source, i) }
	compiled(t, c, fake, text(0), o)
	favourite := theFile(t, dir)
	one := sizeOf(t, dir)
	o.Cache.MaxBytes = 4*one + one/2

	require.NoError(t, os.WriteFile(filepath.Join(dir, "of others"), make([]byte, 10*one), 0o600))
	others := 10 * one
	long := time.Now().Add(-24 * time.Hour)
	for i := 1; i < 12; i++ {
		// All were used a long time ago, the older ones earlier. The first is then used.
		for _, name := range filesIn(t, dir) {
			at := long
			if filepath.Join(dir, name) == favourite {
				at = long.Add(-time.Hour)
			}
			require.NoError(t, os.Chtimes(filepath.Join(dir, name), at, at))
		}
		_, asked := compiled(t, c, fake, text(0), o)
		require.False(t, asked)
		info, err := os.Stat(favourite)
		require.NoError(t, err)
		require.Greater(t, info.ModTime(), long)
		r, asked := compiled(t, c, fake, text(i), o)
		require.True(t, asked)
		require.NoError(t, r.CacheErr)
		require.LessOrEqual(t, sizeOf(t, dir)-others, o.Cache.MaxBytes)
		require.Len(t, filesIn(t, dir), min(i+1, 4)+1)
		_, asked = compiled(t, c, fake, text(i), o)
		require.False(t, asked, "the newest stays")
	}
	require.FileExists(t, filepath.Join(dir, "of others"))

	// What does not fit at all is not kept, and drives nothing out.
	before := filesIn(t, dir)
	o.Cache.MaxBytes = one - 1
	r, asked := compiled(t, c, fake, text(99), o)
	require.True(t, asked)
	require.EqualError(t, r.CacheErr, fmt.Sprintf("not kept: %d bytes, of %d in all", one, one-1))
	require.Equal(t, before, filesIn(t, dir))
	_, asked = compiled(t, c, fake, text(0), o)
	require.True(t, asked, "no file that is larger than MaxBytes is read")
}

// A writer that died leaves a temporary file. It is deleted when it is old.
func TestCacheAbandoned(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	compiled(t, c, fake, source, o)
	file := theFile(t, dir)
	old, young, other := file+".ABC.tmp", file+".DEF.tmp", filepath.Join(dir, "mine.tmp")
	long := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{old, young, other} {
		require.NoError(t, os.WriteFile(name, []byte("half"), 0o600))
	}
	for _, name := range []string{old, other} {
		require.NoError(t, os.Chtimes(name, long, long))
	}
	compiled(t, c, fake, source+" ", o)
	require.NoFileExists(t, old)
	require.FileExists(t, young)
	require.FileExists(t, other)
}

// Goroutines share one small folder, each as a process of its own would.
func TestCacheConcurrently(t *testing.T) {
	path := fakenvrtc.Build(t)
	fake := fakenvrtc.Open(t, path)
	t.Cleanup(fake.Clean)
	o, dir := keptIn(t)
	texts := make([]string, 8)
	want := make([][]byte, len(texts))
	c, err := nvrtc.Open(path)
	require.NoError(t, err)
	for i := range texts {
		texts[i] = source + strings.Repeat(" ", i)
		r, err := c.Compile(texts[i], nvrtc.Options{Arch: "sm_90", NoCache: true})
		require.NoError(t, err)
		want[i] = r.Image
	}
	compiled(t, c, fake, texts[0], o)
	o.Cache.MaxBytes = 2 * sizeOf(t, dir)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			c, err := nvrtc.Open(path)
			if !assert.NoError(t, err) {
				return
			}
			for n := range 100 {
				i := (n*(g+1) + g) % len(texts)
				r, err := c.Compile(texts[i], o)
				if assert.NoError(t, err) {
					assert.Equal(t, want[i], r.Image)
					assert.NoError(t, r.CacheErr)
				}
			}
		})
	}
	all.Wait()
	compiled(t, c, fake, source+"// last", o)
	require.LessOrEqual(t, sizeOf(t, dir), o.Cache.MaxBytes)
	for _, name := range filesIn(t, dir) {
		require.NotContains(t, name, ".tmp")
	}
}
