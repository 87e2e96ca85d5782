//go:build cgo && linux

package nvrtc

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvrtc"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestOpenFirst(t *testing.T) {
	rubbish := filepath.Join(t.TempDir(), "libnvrtc.so.12")
	require.NoError(t, os.WriteFile(rubbish, []byte("no library"), 0o600))
	old := fakenvrtc.Build(t, fakenvrtc.Missing("nvrtcGetSupportedArchs"))
	candidates := []string{"libnvrtc-not-here.so.13", "/nowhere/libnvrtc.so.12", rubbish, old}
	_, err := dl.OpenFirst("libnvrtc", candidates, open)
	require.ErrorIs(t, err, driver.ErrNotSupported)
	for _, candidate := range candidates {
		require.ErrorContains(t, err, candidate)
	}
	require.ErrorContains(t, err, "too old: it has no nvrtcGetSupportedArchs")
	require.ErrorContains(t, err, "looked for libnvrtc-not-here.so.13, /nowhere/libnvrtc.so.12")

	c, err := dl.OpenFirst("libnvrtc", append(candidates, fakenvrtc.Build(t), "/nowhere/either"), open)
	require.NoError(t, err)
	require.Equal(t, []int{75, 80, 90}, c.archs)
}

// info is a file as the system describes it.
type info struct {
	mode fs.FileMode
	uid  int
}

func (info) Name() string        { return "a file" }
func (info) Size() int64         { return 0 }
func (i info) Mode() fs.FileMode { return i.mode }
func (info) ModTime() time.Time  { return time.Time{} }
func (i info) IsDir() bool       { return i.mode.IsDir() }
func (i info) Sys() any          { return &syscall.Stat_t{Uid: uint32(i.uid)} }

// anyInfo is one whose owner cannot be known.
type anyInfo struct{ info }

func (anyInfo) Sys() any { return nil }

func TestOurs(t *testing.T) {
	me := os.Geteuid()
	require.NoError(t, ours(info{0o600, me}))
	require.NoError(t, ours(info{0o755 | fs.ModeDir, me}))
	require.ErrorContains(t, ours(info{0o600, me + 1}), "belongs to user")
	require.ErrorContains(t, ours(anyInfo{info{0o600, me}}), "belongs to user")
	for _, mode := range []fs.FileMode{0o620, 0o602, 0o622, 0o777 | fs.ModeDir} {
		require.ErrorContains(t, ours(info{mode, me}), "others may write")
	}
}

func TestUnknownInclude(t *testing.T) {
	given := map[string]string{"a.cuh": "", "dir/b.cuh": "#include \"a.cuh\"\n"}
	for text, known := range map[string]bool{
		"": true,
		"int include; // #1 a file to be included":   true,
		"#include \"a.cuh\"\n#include <dir/b.cuh>\n": true,
		"  #  include\t<a.cuh> // the first\n":       true,
		"#define INCLUDE 1\n#pragma once\n":          true,
		"int a = 1; # include \"a.cuh\"\n":           false,
		"#include \"b.cuh\"\n":                       false,
		"#include <a.cuh\n":                          false,
		"#include NAME\n":                            false,
		"#inc\\\nlude <c.h>\n":                       false,
		"#inc\\ \r\nlude <c.h>\n":                    false,
		"%:include <c.h>\n":                          false,
		"??=include <c.h>\n":                         false,
		"/* a */ #include <c.h>\n":                   false,
		"#/* a\n*/include <c.h>\n":                   false,
		"# /* a */ include <c.h>\n":                  false,
		"#include_next <a.cuh>\n":                    false,
		"#import <a.cuh>\n":                          false,
		"#embed <a.cuh>\n":                           false,
		"#if __has_include(<a.cuh>)\n#endif\n":       false,
		"#if __has_embed(<a.cuh>)\n#endif\n":         false,
		"#include <a.cuh>\n#include <c.h>\n":         false,
	} {
		want := "kernel.cu"
		if known {
			want = ""
		}
		require.Equal(t, want, unknownInclude(text, Options{Name: "kernel.cu", Headers: given}), text)
	}
	for flag, known := range map[string]bool{
		"-DA=1": true, "--std=c++17": true, "-lineinfo": true, "--maxrregcount=32": true,
		"-I": false, "-I/usr/include": false, "--include-path=/x": false, "-include=a.cuh": false,
		"--pre-include=a.cuh": false, "-pch": false, "--use-pch=x": false, "--pch-dir=x": false,
	} {
		want := flag
		if known {
			want = ""
		}
		require.Equal(t, want, unknownInclude("", Options{Flags: []string{flag}}), flag)
	}
}

// A file whose sum is right may still be no result.
func TestDecodeForm(t *testing.T) {
	k := key{1}
	result := &Result{Kind: KindPTX, Image: []byte("x"), Names: map[string]string{"a": "b"}}
	sealed := func(body []byte) []byte {
		file := encode(k, result)[:prefixSize]
		copy(file[len(magic)+4:], seal(k, body))
		return append(file, body...)
	}
	whole := encode(k, result)
	require.NotNil(t, decode(k, whole))
	require.Nil(t, decode(key{2}, whole))
	body := whole[prefixSize:]
	require.Equal(t, whole, sealed(body))
	for i := range body {
		if r := decode(k, sealed(body[:i])); r != nil {
			require.Empty(t, r.Names, "cut at %d, between two fields", i)
		}
	}
	for _, fields := range [][][]byte{{}, {nil}, {nil, nil}, {nil, nil, nil, nil}} {
		require.Nil(t, decode(k, sealed(pack(fields))))
	}
	huge := append(number(-1), body...)
	require.Nil(t, decode(k, sealed(huge)))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(pack([][]byte{[]byte("ptx"), nil, []byte("image"), []byte("e"), []byte("n")}))
	f.Fuzz(func(t *testing.T, body []byte) {
		k := key{1}
		file := append(encode(k, &Result{})[:len(magic)+4], seal(k, body)...)
		if r := decode(k, append(file, body...)); r != nil {
			require.NotNil(t, decode(k, encode(k, r)))
		}
	})
}
