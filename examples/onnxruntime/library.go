package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// version is that of the npm package onnxruntime-node, which has ONNX Runtime's library.
const version = "1.30.0"

// file is a file of a package, known by its content.
type file struct {
	where  func(context.Context) (url string, err error) // of the package, a compressed tar archive
	name   string                                        // in the package
	sha256 string                                        // of the file
}

// library returns the path of ONNX Runtime's library. It is a file in the user's cache, which
// library takes out of the npm package if it is not there. No code of the package runs. npm says
// where the package is, by its own configuration.
func library(ctx context.Context) (string, error) {
	if platform := runtime.GOOS + "/" + runtime.GOARCH; platform != "linux/amd64" {
		return "", fmt.Errorf("this example has ONNX Runtime for linux/amd64 only, and this is %s", platform)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return file{
		where:  askNPM,
		name:   "package/bin/napi-v6/linux/x64/libonnxruntime.so.1",
		sha256: "ffb75a925ba05e47b235bb66e3e3911714a80b328a9c9425539feb204aa32a23",
	}.cached(ctx, filepath.Join(cache, "cuvmm", "onnxruntime", version))
}

// askNPM returns the address of the package.
func askNPM(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	url, err := exec.CommandContext(ctx, "npm", "view", "onnxruntime-node@"+version, "dist.tarball").Output()
	if err != nil {
		return "", fmt.Errorf("npm view onnxruntime-node@%s: %w", version, err)
	}
	return strings.TrimSpace(string(url)), nil
}

// cached returns the path of the file in dir, and fetches it if dir has none or one of other content.
func (f file) cached(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, filepath.Base(f.name))
	if f.check(path) == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	part, err := os.CreateTemp(dir, "part-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(part.Name()) }() // if it was not renamed
	err = errors.Join(f.fetch(ctx, part), part.Close())
	if err == nil {
		err = f.check(part.Name())
	}
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", f.name, err)
	}
	return path, os.Rename(part.Name(), path)
}

// check returns an error if the file at path has other content.
func (f file) check(path string) error {
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.sha256 {
		return fmt.Errorf("the SHA-256 is %s, not %s", sum, f.sha256)
	}
	return nil
}

// fetch writes the file to w as it arrives. The rest of the package is not kept.
func (f file) fetch(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	url, err := f.where(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	unzipped, err := gzip.NewReader(response.Body)
	if err != nil {
		return err
	}
	archive := tar.NewReader(unzipped)
	for {
		switch header, err := archive.Next(); {
		case errors.Is(err, io.EOF):
			return errors.New("the package has no such file")
		case err != nil:
			return err
		case header.Name == f.name:
			_, err := io.Copy(w, archive)
			return err
		}
	}
}
