package cri_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// TestListingFails: a runtime that sends events, and could not be listed once, is healthy again as soon as it can be.
func TestListingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails, unhealthy atomic.Bool
		fake := critest.NewFake()
		fake.Fail = func(call, _ string) error {
			if call == "ListPodSandbox" && fails.Load() {
				return errors.New("too slow")
			}
			return nil
		}
		w := &cri.Watcher{
			Runtime: cri.New(fake), Changed: func(types.UID) {}, Healthy: func(err error) { unhealthy.Store(err != nil) }, Log: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(time.Second)
		fails.Store(true)
		for range 600 { // until it is listed again
			if time.Sleep(time.Second); unhealthy.Load() {
				break
			}
		}
		if !unhealthy.Load() {
			t.Error("the failure of a listing is not reported")
		}
		fails.Store(false)
		time.Sleep(5 * time.Second)
		if unhealthy.Load() {
			t.Error("the runtime is unhealthy although it can be listed")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
