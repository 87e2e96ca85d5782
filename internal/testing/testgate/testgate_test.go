package testgate_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// recorder is a test that only records how it was ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.end = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.end = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestRequire(t *testing.T) {
	lacking := errors.New("no libcuda.so.1")
	for _, tc := range []struct {
		env     string
		missing error
		want    string
	}{
		{"", nil, "goes on"},
		{"cuda", nil, "goes on"},
		{"", lacking, "skip: needs cuda: no libcuda.so.1"},
		{"host,p2p", lacking, "skip: needs cuda: no libcuda.so.1"},
		{"p2p,cuda", lacking, "fatal: VMM_TEST_REQUIRE asks for cuda: no libcuda.so.1"},
		{" p2p , cuda ,", lacking, "fatal: VMM_TEST_REQUIRE asks for cuda: no libcuda.so.1"},
		{"p2p,CUDA", lacking, `fatal: VMM_TEST_REQUIRE asks for "CUDA"; there are host, cuda, p2p, nvrtc, nccl and onnxruntime`},
		{"gpu", nil, `fatal: VMM_TEST_REQUIRE asks for "gpu"; there are host, cuda, p2p, nvrtc, nccl and onnxruntime`},
	} {
		t.Setenv("VMM_TEST_REQUIRE", tc.env)
		r := &recorder{TB: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			testgate.Require(r, "cuda", tc.missing)
			r.end = "goes on"
		}()
		<-ended
		require.Equal(t, tc.want, r.end, "VMM_TEST_REQUIRE=%q", tc.env)
	}
}

// TestInChild: the test ends here as it has ended there.
func TestInChild(t *testing.T) {
	for name, c := range map[string]struct {
		inChild func(testing.TB)
		end     string
	}{
		"passes": {func(testing.TB) {}, ""},
		"skips":  {func(t testing.TB) { t.Skip("a reason") }, "skip"},
		"fails":  {func(t testing.TB) { t.Fatal("a fault") }, "fatal"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if !testgate.Child() {
					testgate.InChild(r)
				}
			}()
			<-done
			if testgate.Child() {
				c.inChild(t)
				return
			}
			require.Regexp(t, "^"+c.end, r.end)
			require.Equal(t, c.end == "", r.end == "", r.end)
		})
	}
}
