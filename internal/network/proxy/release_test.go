package proxy

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestUnmodifiedMappings(t *testing.T) {
	const smaps = `00400000-02a3b000 r-xp 00000000 fe:00 131 /usr/bin/skiff
Size:              38124 kB
Rss:               21000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
02a3b000-04c00000 r--p 0263b000 fe:00 131 /usr/bin/skiff
Rss:               17000 kB
Anonymous:             0 kB
04c00000-04d00000 r--p 04800000 fe:00 131 /usr/bin/skiff
Rss:                1024 kB
Anonymous:           512 kB
04d00000-04f00000 rw-p 04900000 fe:00 131 /usr/bin/skiff
Rss:                2048 kB
Anonymous:             0 kB
04f00000-05000000 rw-p 00000000 00:00 0
Rss:                1024 kB
Anonymous:             0 kB
7f0000000000-7f0000200000 r-xp 00000000 fe:00 99 /lib/libc.so.6
Rss:                1024 kB
Anonymous:             0 kB
7ffc0000-7ffd0000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
`
	got, err := unmodifiedMappings(strings.NewReader(smaps), "/usr/bin/skiff")
	if want := []mapping{{0x400000, 0x2a3b000}, {0x2a3b000, 0x4c00000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
}

// What was released is read from the file again when it is used.
func TestReleaseMemory(t *testing.T) {
	if err := releaseMemory(); err != nil {
		t.Fatal(err)
	}
	TestUnmodifiedMappings(t)
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := unmodifiedMappings(strings.NewReader(string(smaps)), program); err != nil || len(found) == 0 {
		t.Errorf("the program has no mappings that can be released: %v\n%s", err, smaps)
	}
}
