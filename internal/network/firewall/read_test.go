package firewall

import (
	"errors"
	"testing"
)

func TestUnchanged(t *testing.T) {
	missing := errors.New("a table was deleted")
	for name, test := range map[string]struct {
		// generations are those that the kernel reports, in this order; the last one stays.
		generations []uint32
		// errs are those of the reads.
		errs  []error
		reads int
		want  error
	}{
		"no change":                 {[]uint32{7}, nil, 1, nil},
		"changed meanwhile":         {[]uint32{7, 8, 9, 10, 11}, nil, 3, nil},
		"deleted meanwhile":         {[]uint32{7, 8}, []error{missing}, 2, nil},
		"error that stays":          {[]uint32{7}, []error{missing}, 1, missing},
		"changed again and deleted": {[]uint32{7, 8, 8}, []error{missing, missing}, 2, missing},
	} {
		t.Run(name, func(t *testing.T) {
			left, reads := test.generations, 0
			generation := func() (uint32, error) {
				now := left[0]
				if len(left) > 1 {
					left = left[1:]
				}
				return now, nil
			}
			got, err := unchanged(generation, func() error {
				reads++
				if reads <= len(test.errs) {
					return test.errs[reads-1]
				}
				return nil
			})
			if reads != test.reads || !errors.Is(err, test.want) || got != test.generations[len(test.generations)-1] {
				t.Errorf("generation %d after %d reads, %v", got, reads, err)
			}
		})
	}
	reads, now := 0, uint32(0)
	_, err := unchanged(func() (uint32, error) { now++; return now, nil }, func() error { reads++; return nil })
	if err == nil || reads != readTries {
		t.Errorf("rules that change all the time: %d reads, %v", reads, err)
	}
}
