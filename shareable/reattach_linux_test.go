package shareable

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestReattach: an owner that is killed and started again, twice.
func TestReattach(t *testing.T) {
	t.Parallel()
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, 3*mib)
	v := joined(t, path, crashDevice(t), AttachOptions{})
	require.NoError(t, waitFor(v, n))
	again := func(v *View) (*View, error) {
		t.Helper()
		w, fresh, err := Reattach(t.Context(), v)
		require.Equal(t, fresh, w != v)
		return w, err
	}
	for i := range uint64(2) {
		w, err := again(v)
		require.NoError(t, err)
		require.Same(t, v, w, "it follows its owner")

		owner.kill()
		orphaned(t, v)
		w, err = again(v)
		require.ErrorIs(t, err, ErrOwnerGone)
		require.Same(t, v, w, "what is mapped is not lost to the caller")

		owner = spawn(t, "owner", path)
		instance := owner.expect("ready")
		more := grownBy(t, owner, (5+i)*mib)
		w, err = again(v)
		require.NoError(t, err)
		require.NotSame(t, v, w)
		t.Cleanup(func() { require.NoError(t, w.Close()) })
		require.Equal(t, instance, fmt.Sprintf("%x", w.Instance()))
		require.NotEqual(t, v.Ptr(), w.Ptr())
		require.NoError(t, waitFor(w, more))
		require.Equal(t, more, whole(t, w))
		require.Equal(t, n, whole(t, v), "the old one can still be read")
		v, n = w, more
	}
	// The caller may close the old one first, to have its memory back before.
	require.NoError(t, v.Close())
	w, err := again(v)
	require.NoError(t, err)
	require.NotSame(t, v, w)
	require.NoError(t, waitFor(w, n))
	require.NoError(t, w.Close())
}

// TestReattachAsBefore: with the options of the first time, whatever the caller has
// written to its slices since.
func TestReattachAsBefore(t *testing.T) {
	t.Parallel()
	o := Options{Token: []byte("secret")}
	s, p, g := stage(t, o, PublishOptions{Write: true})
	require.NoError(t, g.Append(pattern(0, 100)))
	token := []byte("secret")
	ask := AttachOptions{Token: token, Write: true, MaxBytes: 32 << 20, Timeout: patience}
	v := attached(t, s, ask)
	clear(token)
	require.NoError(t, p.Close())
	soon(t, "the view knows that the publication has closed", func() bool { return v.Err() != nil })
	_, _, err := Reattach(t.Context(), v)
	require.ErrorIs(t, err, ErrNotFound)
	p, err = s.Publish("x", g, PublishOptions{Write: true})
	require.NoError(t, err)
	w, fresh, err := Reattach(t.Context(), v)
	require.NoError(t, err)
	require.True(t, fresh)
	require.Equal(t, v.opts, w.opts)
	require.Equal(t, v.Device(), w.Device())
	require.Equal(t, v.Instance(), w.Instance(), "the owner was not started again")
	wait(t, w, 100)
	require.NoError(t, w.Close())
	require.NoError(t, p.Close())
}

func TestReattachWithoutAPath(t *testing.T) {
	t.Parallel()
	_, _, err := Reattach(t.Context(), nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)

	_, _, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	a, b := pair(t)
	sent := make(chan error, 1)
	go func() { sent <- Send(t.Context(), a, g) }()
	v, err := Receive(t.Context(), b, vmmtest.Device(t), AttachOptions{})
	require.NoError(t, err)
	require.NoError(t, <-sent)
	same, fresh, err := Reattach(t.Context(), v)
	require.NoError(t, err, "it is whole")
	require.False(t, fresh)
	require.Same(t, v, same)
	require.NoError(t, v.Close())
	same, fresh, err = Reattach(t.Context(), v)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.False(t, fresh)
	require.Same(t, v, same)
}
