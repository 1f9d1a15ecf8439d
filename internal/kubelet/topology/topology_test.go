package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// tree are the files of a host below Dir, by path.
type tree map[string]string

// cpu adds a CPU. cache is the ID of its cache of level 3, which the CPUs of a mask share; -1 for none.
func (f tree) cpu(id, core, socket, cache int, mask string) tree {
	dir := fmt.Sprintf("cpu/cpu%d/", id)
	f[dir+"topology/core_id"], f[dir+"topology/physical_package_id"] = strconv.Itoa(core)+"\n", strconv.Itoa(socket)+"\n"
	if cache >= 0 {
		f[dir+"cache/index0/id"], f[dir+"cache/index0/level"], f[dir+"cache/index0/shared_cpu_map"] = "0\n", "1\n", "1\n"
		f[dir+"cache/index3/id"], f[dir+"cache/index3/level"], f[dir+"cache/index3/shared_cpu_map"] = strconv.Itoa(cache)+"\n", "3\n", mask+"\n"
	}
	return f
}

// node adds a NUMA node with CPUs.
func (f tree) node(id int, distances string, cpus ...int) tree {
	dir := fmt.Sprintf("node/node%d/", id)
	f[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        1 kB\n", id, 1024*(id+1), id)
	f[dir+"distance"] = distances + "\n"
	f[dir+"hugepages/hugepages-2048kB/nr_hugepages"] = strconv.Itoa(id) + "\n"
	for _, cpu := range cpus {
		f[dir+"cpu"+strconv.Itoa(cpu)+"/of"] = "" // a link on a real host
	}
	return f
}

func (f tree) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range f {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// describe formats the CPUs of a topology: id=node/socket/core/cache.
func describe(h *Topology) string {
	var words []string
	for _, id := range h.AllCPUs().List() {
		c := h.CPUs[id]
		words = append(words, fmt.Sprintf("%d=%d/%d/%d/%d", id, c.NUMANode, c.Socket, c.Core, c.UncoreCache))
	}
	return strings.Join(words, " ")
}

func TestRead(t *testing.T) {
	for _, row := range []struct {
		name                   string
		files                  tree
		want                   string
		cores, sockets, caches int
	}{
		{
			name: "two sockets with two threads per core",
			files: tree{"cpu/online": "0-7\n"}.cpu(0, 0, 0, -1, "").cpu(1, 1, 0, -1, "").cpu(2, 0, 1, -1, "").cpu(3, 1, 1, -1, "").
				cpu(4, 0, 0, -1, "").cpu(5, 1, 0, -1, "").cpu(6, 0, 1, -1, "").cpu(7, 1, 1, -1, "").
				node(0, "10 20", 0, 1, 4, 5).node(1, "20 10", 2, 3, 6, 7),
			want:  "0=0/0/0/0 1=0/0/1/0 2=1/1/2/1 3=1/1/3/1 4=0/0/0/0 5=0/0/1/0 6=1/1/2/1 7=1/1/3/1",
			cores: 4, sockets: 2, caches: 2,
		},
		{
			name: "two uncore caches in a NUMA node",
			files: tree{"cpu/online": "0-3\n"}.cpu(0, 0, 0, 4, "3").cpu(1, 1, 0, 4, "3").cpu(2, 2, 0, 5, "00000000,0000000c").cpu(3, 3, 0, 5, "0000000c").
				node(0, "10", 0, 1, 2, 3),
			want:  "0=0/0/0/4 1=0/0/1/4 2=0/0/2/5 3=0/0/3/5",
			cores: 4, sockets: 1, caches: 2,
		},
		{
			name:  "a cache of the whole NUMA node",
			files: tree{"cpu/online": "0-1\n"}.cpu(0, 0, 0, 4, "3").cpu(1, 1, 0, 4, "3").node(0, "10", 0, 1),
			want:  "0=0/0/0/0 1=0/0/1/0", cores: 2, sockets: 1, caches: 1,
		},
		{
			name:  "an offline CPU",
			files: tree{"cpu/online": "0,2\n"}.cpu(0, 0, 0, -1, "").cpu(1, 0, 0, -1, "").cpu(2, 1, 0, -1, "").node(0, "10", 0, 1, 2),
			want:  "0=0/0/0/0 2=0/0/2/0", cores: 2, sockets: 1, caches: 1,
		},
		{
			name:  "no NUMA nodes, no list of online CPUs",
			files: tree{}.cpu(0, 0, 0, -1, "").cpu(1, 0, 3, -1, "").cpu(10, 1, 3, -1, ""),
			want:  "0=0/0/0/0 1=3/3/1/3 10=3/3/10/3", cores: 3, sockets: 2, caches: 2,
		},
		{
			name:  "a NUMA node without CPUs",
			files: tree{"cpu/online": "0\n"}.cpu(0, 0, 0, -1, "").node(0, "10 20", 0).node(1, "20 10"),
			want:  "0=0/0/0/0", cores: 1, sockets: 1, caches: 1,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, err := Read(row.files.write(t))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(h); got != row.want {
				t.Errorf("CPUs %s, want %s", got, row.want)
			}
			if h.Cores != row.cores || h.Sockets != row.sockets || h.UncoreCaches != row.caches {
				t.Errorf("%d cores, %d sockets, %d uncore caches, want %d, %d and %d", h.Cores, h.Sockets, h.UncoreCaches, row.cores, row.sockets, row.caches)
			}
		})
	}
}

func TestReadNUMANodes(t *testing.T) {
	files := tree{"cpu/online": "0-1\n"}.cpu(0, 0, 0, -1, "").cpu(1, 1, 0, -1, "").node(0, "10 21", 0).node(1, "21 10", 1).node(10, "1 2")
	delete(files, "node/node10/distance")
	delete(files, "node/node10/meminfo")
	h, err := Read(files.write(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []NUMANode{
		{ID: 0, Memory: 1 << 20, HugePages: []HugePages{{PageSize: 2 << 20}}, Distances: []uint64{10, 21}},
		{ID: 1, Memory: 2 << 20, HugePages: []HugePages{{PageSize: 2 << 20, Count: 1}}, Distances: []uint64{21, 10}},
		{ID: 10, HugePages: []HugePages{{PageSize: 2 << 20, Count: 10}}},
	}
	if !reflect.DeepEqual(h.NUMANodes, want) {
		t.Errorf("NUMA nodes %+v, want %+v", h.NUMANodes, want)
	}
	if got := h.NUMANodesWithCPUs(); !reflect.DeepEqual(got, []int{0, 1}) {
		t.Errorf("NUMA nodes with CPUs %v", got)
	}
}

func TestReadInvalid(t *testing.T) {
	valid := func() tree { return tree{"cpu/online": "0\n"}.cpu(0, 0, 0, -1, "").node(0, "10", 0) }
	for _, row := range []struct{ name, path, content, want string }{
		{"online CPUs", "cpu/online", "zero", "parse online CPUs"},
		{"core", "cpu/cpu0/topology/core_id", "x", "invalid syntax"},
		{"memory", "node/node0/meminfo", "Node 0 MemFree: 1 kB", "MemTotal is missing"},
		{"distances", "node/node0/distance", "ten", "parse distances of NUMA node 0"},
		{"huge pages", "node/node0/hugepages/hugepages-2048kB/nr_hugepages", "many", "parse number of huge pages"},
		{"no CPUs", "cpu/online", "", "could not detect number of cpus"},
	} {
		t.Run(row.name, func(t *testing.T) {
			files := valid()
			files[row.path] = row.content
			if _, err := Read(files.write(t)); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
}
