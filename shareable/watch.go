package shareable

import (
	"runtime"
	"time"
)

const (
	watchTimeout  = 100 * time.Millisecond // a wait on the page, should a wake be missed
	watchIdle  = 32                     // wakes in a row that brought nothing
	watchBurst = 32                     // wakes, whatever they brought, that may come within watchPause
	watchPause = time.Millisecond       // before the next look after as many
)

// watch has the page watched while somebody waits. It needs v.mu whole.
func (v *View) watchLocked() {
	if v.watching || v.detached || v.closed || v.page == nil {
		return
	}
	v.watching = true
	v.tasks.Add(1)
	go v.watchPage(v.page)
}

// watchPage sleeps on the page's wake word and tells those who wait. An owner
// that wakes without end makes it look once in a while and no more, even if each
// wake brings a byte.
func (v *View) watchPage(page *readerPage) {
	defer v.tasks.Done()
	since := time.Now()
	for idle, burst := 0, 0; ; idle, burst = idle+1, burst+1 {
		v.pageChecks.Add(1)
		wake := page.wake() // before the look, so that no change is missed
		moved, on := v.checkPage()
		if !on {
			return
		}
		if moved {
			idle = 0
			runtime.Gosched() // to whom was told: on this thread, without waking another
		}
		hurried := burst == watchBurst && time.Since(since) < watchPause
		if idle >= watchIdle || hurried {
			select {
			case <-v.stop:
			case <-time.After(watchPause):
			}
		}
		if burst == watchBurst {
			burst, since = 0, time.Now()
		}
		begun := time.Now()
		page.wait(wake, watchTimeout)
		if time.Since(begun) >= watchPause {
			idle = 0
		}
	}
}

// glance looks at the page and says whether to go on.
func (v *View) checkPage() (moved, on bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	moved = v.updateLenLocked()
	on = !v.detached && !v.closed && (v.waiters > 0 || len(v.pendingWaits) > 0)
	v.watching = on
	return moved, on
}

// join waits for the view's goroutines, waking the one that sleeps on the page.
func (v *View) waitTasks() {
	done := make(chan struct{})
	go func() {
		v.tasks.Wait()
		close(done)
	}()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		v.mu.RLock()
		if v.page != nil && v.watching {
			v.page.wakeWaiters()
		}
		v.mu.RUnlock()
		select {
		case <-done:
			return
		case <-again.C: // it may not have been asleep yet
		}
	}
}
