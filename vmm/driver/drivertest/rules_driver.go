package drivertest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func driverRules() []Rule {
	return []Rule{
		{Name: "devices", Says: "Devices lists ordinals from 0 with the names that open them", Source: seam, run: devicesListed},
		{Name: "no-such-device", Says: "every call that names a device that does not exist is ErrNoDevice", Source: seam, run: noSuchDevice},
		{Name: "supports", Says: "Supports returns nil or ErrNotSupported for every feature, also for an unknown one", Source: seam, run: supports},
		{Name: "supports-what-works", Says: "Supports agrees with what calls do about read-only shares, the granularity, HostBytes, copies of rows, pools and kernels", Source: seam, run: supportsWhatWorks},
		{Name: "granularity", Says: "granularity is a power of two of at least a page, the recommended one a multiple of it, and for LocationOwner both are ErrInvalid", Source: seam, run: granularity},
		{Name: "no-context", Says: "addresses, memory, mappings and access work with no device opened", Source: measured, run: noContext},
		{Name: "concurrent", Says: "reserve, create, map, unmap, release and free are safe on many goroutines at once", Source: contract(9), run: concurrentMemory},
	}
}

func devicesListed(c *check) {
	if strings.Contains(c.d.Name(), ":") || c.d.Name() == "" {
		c.Errorf("name is %q", c.d.Name())
	}
	for i, info := range c.info {
		equal(c, info.Ordinal, i, "the ordinal of a device")
		// A driver that options were passed to names them after a question mark.
		bare, _, _ := strings.Cut(info.Open, "?")
		equal(c, bare, fmt.Sprintf("%s:%d", c.d.Name(), i), "what device %d is opened as", i)
		if info.Name == "" || info.Memory == 0 {
			c.Errorf("device %d has name %q and %d bytes", i, info.Name, info.Memory)
		}
	}
}

func noSuchDevice(c *check) {
	for _, n := range []int{-1, len(c.info), 1 << 20} {
		c.want(errOf(c.d.Open(n)), fmt.Sprintf("open device %d", n), driver.ErrNoDevice)
		c.want(c.d.SyncIfActive(n), fmt.Sprintf("sync device %d", n), driver.ErrNoDevice)
		c.want(c.d.Supports(n, driver.FeatureVMM), fmt.Sprintf("ask device %d for a feature", n), driver.ErrNoDevice)
		c.want(errOf(c.d.CanAccessPeer(0, n)), fmt.Sprintf("ask for access from 0 to %d", n), driver.ErrNoDevice)
		c.want(errOf(c.d.CanAccessPeer(n, 0)), fmt.Sprintf("ask for access from %d to 0", n), driver.ErrNoDevice)
		c.want(errOf(c.d.Granularity(private(n))), fmt.Sprintf("ask for device %d's granularity", n), driver.ErrNoDevice)
		c.want(errOf(c.d.GranularityRecommended(private(n))), fmt.Sprintf("ask for device %d's recommended granularity", n), driver.ErrNoDevice)
		c.want(errOf(c.d.Create(c.gran, private(n))), fmt.Sprintf("create on device %d", n), driver.ErrNoDevice)
	}
}

func supports(c *check) {
	for dev := range c.info {
		for _, f := range append(driver.Features(), 250) {
			if err := c.d.Supports(dev, f); err != nil {
				c.want(err, fmt.Sprintf("ask device %d for %v", dev, f), driver.ErrNotSupported)
			}
		}
		c.want(c.d.Supports(dev, 250), "ask for feature 250", driver.ErrNotSupported)
	}
}

func supportsWhatWorks(c *check) {
	p, _ := c.chunks(1)
	_, err := c.d.HostBytes(p, c.gran)
	c.agrees(driver.FeatureHostView, err == nil, "HostBytes returns %v", err)
	_, err = as[driver.Copier2D](c, c.dev(0)).Pitch(1)
	c.agrees(driver.FeatureCopy2D, err == nil, "Pitch returns %v", err)
	_, err = as[driver.Pooler](c, c.dev(0)).DefaultPool()
	c.agrees(driver.FeaturePools, err == nil, "DefaultPool returns %v", err)
	l := as[driver.Launcher](c, c.dev(0))
	m, _, err := l.LoadModule(kernels())
	if err == nil {
		c.must(l.UnloadModule(m), "unload the kernels")
	}
	c.agrees(driver.FeatureKernels, err == nil, "LoadModule returns %v", err)
	c.agrees(driver.FeaturePageChunks, c.gran == uint64(os.Getpagesize()), "the granularity is %d", c.gran)
	if errors.Is(c.d.Supports(0, driver.FeatureShareFD), driver.ErrNotSupported) {
		return
	}
	prop := shared()
	prop.Share |= driver.ShareReadOnly
	h, err := c.d.Create(c.gran, prop)
	if err == nil {
		c.held.handles[h] = true
	}
	c.agrees(driver.FeatureShareReadOnly, err == nil, "Create returns %v", err)
}

// agrees checks what Supports says of device 0 by what was seen.
func (c *check) agrees(f driver.Feature, works bool, seen string, args ...any) {
	c.Helper()
	if err := c.d.Supports(0, f); (err == nil) != works {
		c.Errorf("ask for %v: %v, but %s", f, err, fmt.Sprintf(seen, args...))
	}
}

func granularity(c *check) {
	if c.gran < 4096 || c.gran&(c.gran-1) != 0 {
		c.Errorf("granularity is %d", c.gran)
	}
	c.want(errOf(c.d.Granularity(driver.Prop{})), "granularity for Here", driver.ErrInvalid)
	c.want(errOf(c.d.GranularityRecommended(driver.Prop{})), "recommended granularity for Here", driver.ErrInvalid)
	best := valueOf(c.d.GranularityRecommended(private(0))).must(c, "ask for the recommended granularity")
	if best == 0 || best%c.gran != 0 {
		c.Errorf("the recommended granularity is %d, of %d", best, c.gran)
	}
}

func noContext(c *check) {
	p, hs := c.chunks(3)
	c.has(p, 0, driver.AccessReadWrite)
	c.must(c.d.SyncIfActive(0), "sync a device that is not open")
	c.unmap(p, 3*c.gran)
	c.release(hs...)
	c.free(p)
}

func concurrentMemory(c *check) {
	const goroutines, rounds = 8, 20
	// Undone in the reverse order, also after an error, so that Balanced can tell.
	life := func() (err error) {
		p, err := c.d.Reserve(2*c.gran, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.d.Free(p, 2*c.gran)) }()
		h, err := c.d.Create(c.gran, private(0))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.d.Release(h)) }()
		if err := c.d.Map(c.chunk(p, 1), c.gran, h); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.d.Unmap(c.chunk(p, 1), c.gran)) }()
		return c.d.SetAccess(c.chunk(p, 1), c.gran, []driver.Grant{grant(0, driver.AccessReadWrite)})
	}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				if err := life(); err != nil {
					c.Errorf("one life of a chunk: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
