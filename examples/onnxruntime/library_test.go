package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// served is a package with one file, on a server that counts requests.
func served(t *testing.T, name string, text []byte) (f file, requests *int) {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: "package/other", Mode: 0o644}))
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
	_, err := archive.Write(text)
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, zipped.Close())

	requests = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		if r.URL.Path != "/a.tgz" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(packed.Bytes())
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(text)
	return file{at(server.URL + "/a.tgz"), name, hex.EncodeToString(sum[:])}, requests
}

// at says that a package is there.
func at(url string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return url, nil }
}

func TestFileIsFetchedOnce(t *testing.T) {
	f, requests := served(t, "package/lib/a.so", []byte("a library"))
	dir := filepath.Join(t.TempDir(), "cache")
	for range 3 {
		path, err := f.cached(t.Context(), dir)
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "a library", string(text))
	}
	require.Equal(t, 1, *requests)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.so"), []byte("a librari"), 0o600))
	path, err := f.cached(t.Context(), dir)
	require.NoError(t, err)
	require.NoError(t, f.check(path))
	require.Equal(t, 2, *requests)
}

func TestOtherFilesAreRefused(t *testing.T) {
	for name, mend := range map[string]func(*file){
		"the SHA-256 is":               func(f *file) { f.sha256 = hex.EncodeToString(make([]byte, 32)) },
		"the package has no such file": func(f *file) { f.name = "package/lib/b.so" },
		"404 Not Found":                func(f *file) { url, _ := f.where(t.Context()); f.where = at(url + "z") },
		"unsupported protocol scheme":  func(f *file) { f.where = at("none:/a.tgz") },
		"npm has none": func(f *file) {
			f.where = func(context.Context) (string, error) { return "", errors.New("npm has none") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := served(t, "package/lib/a.so", []byte("a library"))
			mend(&f)
			dir := t.TempDir()
			_, err := f.cached(t.Context(), dir)
			require.ErrorContains(t, err, name)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
