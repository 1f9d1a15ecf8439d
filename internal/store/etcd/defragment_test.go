package etcd_test

import (
	"fmt"
	"strings"
	"testing"

	"skiff/internal/store/etcd"
)

// While a member defragments its file the others do not. It ends with the member.
func TestOneMemberDefragments(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	var stores []*etcd.Store
	for i, address := range freeAddresses(t, 3) {
		config := m.config(fmt.Sprint("member-", i), address)
		if i == 0 {
			stores = append(stores, open(t, config))
			continue
		}
		stores = append(stores, m.join(stores[0], config))
	}
	for _, s := range stores {
		if listed, err := s.Members(t.Context()); err != nil || len(listed) != 3 { // all know all
			t.Fatal(listed, err)
		}
	}
	for i, s := range stores {
		end, err := s.BeginDefragmentation(t.Context(), false)
		if err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
		for j, other := range stores {
			if j == i {
				continue
			}
			if _, err := other.BeginDefragmentation(t.Context(), true); err == nil || err.Error() != fmt.Sprintf("member-%d defragments its file", i) {
				t.Errorf("member %d begins while member %d defragments: %v", j, i, err)
			}
		}
		end()
	}
	if _, err := stores[2].BeginDefragmentation(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	stores[2].Close()
	if _, err := stores[1].BeginDefragmentation(t.Context(), false); err == nil || !strings.HasPrefix(err.Error(), "member-2 does not respond") {
		t.Errorf("without one of the members: %v", err)
	}
	if _, err := stores[1].BeginDefragmentation(t.Context(), true); err != nil {
		t.Errorf("without one of the members, when writes are refused: %v", err)
	}
}
