package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestParseMappings(t *testing.T) {
	const maps = `00400000-00b21000 r-xp 00000000 fe:00 261                                /usr/bin/skiff
c000000000-c000400000 rw-p 00000000 00:00 0
7f0000000000-7f0280000000 r--s 00000000 fe:00 4711                     /data/member/snap/db
7f0300000000-7f0300100000 rw-s 00000000 fe:00 4711                     /data/member/snap/db
7f0400000000-7f0400100000 r--s 00000000 08:01 4711                     /other/with the same inode
7ffd1b9f5000-7ffd1ba16000 rw-p 00000000 00:00 0                          [stack]
`
	found, err := parseMappings(strings.NewReader(maps), 0xfe<<8, 4711)
	if want := []mapping{{0x7f0000000000, 0x7f0280000000}}; err != nil || !slices.Equal(found, want) {
		t.Errorf("mappings %v, %v, want %v", found, err, want)
	}
	if _, err := parseMappings(strings.NewReader("something else\n"), 1, 1); err == nil {
		t.Error("a line that is no mapping was accepted")
	}
}

// The pages of the database are not resident after they were unmapped, and can be read again, while others write and the file grows.
func TestUnmapPages(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, Config{DataDir: t.TempDir(), CompactionInterval: -1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := s.engine.(*embedded)
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<15) // 512 KiB
	const count = 64
	key := func(i int) string { return fmt.Sprint("/registry/", i) }
	for i := range count {
		if _, err := s.Create(ctx, key(i), value, 0); err != nil {
			t.Fatal(err)
		}
	}
	read := func(i int) {
		if kv, err := s.Get(ctx, key(i)); err != nil || !bytes.Equal(kv.Value, value) {
			t.Errorf("read %s: %v", key(i), err)
		}
	}
	e.server.Backend().ForceCommit() // what is not yet in the file is read from a buffer
	for i := range count {
		read(i)
	}
	before := residentBytes(t, databaseFile(e.dir))
	if before < count*int64(len(value))/2 {
		t.Fatalf("%d bytes of the file are resident after reading all of it", before)
	}
	if err := e.unmapPages(); err != nil {
		t.Fatal(err)
	}
	if after := residentBytes(t, databaseFile(e.dir)); after > before/4 {
		t.Errorf("%d bytes of the file are resident, %d were before they were unmapped", after, before)
	}

	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range count {
			if _, err := s.Create(ctx, key(count+i), value, 0); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range count {
		if err := e.unmapPages(); err != nil {
			t.Error(err)
		}
		read(i)
	}
	writers.Wait()
	for i := range 2 * count {
		read(i)
	}
}

// residentBytes is how much of the mappings of a file is resident.
func residentBytes(t *testing.T, path string) (sum int64) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(smaps)) {
		if first, _, _ := strings.Cut(line, " "); strings.Contains(first, "-") {
			found = strings.HasSuffix(strings.TrimSpace(line), path)
		}
		var kib int64
		if _, err := fmt.Sscanf(line, "Rss: %d kB", &kib); err == nil && found {
			sum += kib << 10
		}
	}
	return sum
}
