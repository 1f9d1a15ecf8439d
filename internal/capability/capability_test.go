package capability

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestHas(t *testing.T) {
	s := Set(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_BPF)
	for capability, want := range map[int]bool{unix.CAP_NET_ADMIN: true, unix.CAP_BPF: true, unix.CAP_SYS_ADMIN: false, unix.CAP_CHOWN: false} {
		if s.Has(capability) != want {
			t.Errorf("Has(%d) = %v", capability, !want)
		}
	}
	if _, err := Effective(); err != nil {
		t.Error(err)
	}
}
