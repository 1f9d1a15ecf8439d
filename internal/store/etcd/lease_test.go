package etcd_test

import (
	"testing"
	"time"

	"skiff/internal/store/etcd"
)

// Writes go on with another lease when etcd has lost one that several of them share, as after a restore of an external etcd.
func TestLostLease(t *testing.T) {
	address := "unix://" + t.TempDir() + "/socket"
	embedded := open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
	for name, s := range map[string]*etcd.Store{"embedded": embedded, "remote": open(t, etcd.Config{Servers: []string{address}})} {
		lose := func() {
			t.Helper()
			if n, err := embedded.RevokeLeases(t.Context()); err != nil || n != 1 {
				t.Fatalf("%s: revoked %d leases, %v", name, n, err)
			}
		}
		if _, err := s.Create(t.Context(), "/registry/events/first", []byte("v"), time.Hour); err != nil {
			t.Fatal(err)
		}
		lose()
		revision, err := s.Create(t.Context(), "/registry/events/second", []byte("v"), time.Hour)
		if err != nil {
			t.Fatalf("%s: create after the loss of a lease: %v", name, err)
		}
		if revision, err = s.Update(t.Context(), "/registry/events/second", []byte("v"), 0, revision); err != nil {
			t.Fatal(err)
		}
		lose()
		if _, err := s.Update(t.Context(), "/registry/events/second", []byte("w"), time.Hour, revision); err != nil {
			t.Errorf("%s: update after the loss of a lease: %v", name, err)
		}
		lose() // with the keys
	}
}
