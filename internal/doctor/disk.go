package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"skiff/internal/kubelet/evict"
)

// existing is a path, or the nearest directory above it that exists.
func existing(path string) (string, error) {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return path, err
		}
	}
}

// fileSystem is the file system of a directory.
type fileSystem struct {
	dir        string
	kind       int64
	isReadOnly bool
	// hasImages is whether a node unpacks images in it.
	hasImages bool
}

// unsuitable are the file systems on which skiff's data cannot be. Containers' file systems are overlays, whose upper directory must be on one that supports that.
var unsuitable = map[int64]struct{ name, breaks string }{
	unix.NFS_SUPER_MAGIC:       {"NFS", "images are not unpacked, and etcd loses acknowledged writes when the server or the network fails"},
	unix.SMB_SUPER_MAGIC:       {"SMB", "images are not unpacked, and etcd loses acknowledged writes when the server or the network fails"},
	unix.CIFS_SUPER_MAGIC:      {"SMB", "images are not unpacked, and etcd loses acknowledged writes when the server or the network fails"},
	unix.SMB2_SUPER_MAGIC:      {"SMB", "images are not unpacked, and etcd loses acknowledged writes when the server or the network fails"},
	unix.CEPH_SUPER_MAGIC:      {"CephFS", "images are not unpacked, and etcd is slow"},
	unix.V9FS_MAGIC:            {"9p", "images are not unpacked, and etcd cannot map its files"},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", "images are not unpacked, unless the file system supports overlays"},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", "images are not unpacked, because an overlay cannot be on another one"},
	unix.MSDOS_SUPER_MAGIC:     {"FAT", "there are neither owners nor permissions: keys are readable by everyone, and images are not unpacked"},
	unix.EXFAT_SUPER_MAGIC:     {"exFAT", "there are neither owners nor permissions: keys are readable by everyone, and images are not unpacked"},
	unix.ECRYPTFS_SUPER_MAGIC:  {"eCryptfs", "images are not unpacked, because an overlay cannot be on it"},
	unix.SQUASHFS_MAGIC:        {"squashfs", "nothing can be written"},
	unix.ISOFS_SUPER_MAGIC:     {"ISO 9660", "nothing can be written"},
	unix.TMPFS_MAGIC:           {"tmpfs", "the state of the cluster, its keys and its images are lost"},
	unix.RAMFS_MAGIC:           {"ramfs", "the state of the cluster, its keys and its images are lost"},
}

// unsuitableForImages are the file systems that are unsuitable for containers' file systems only.
var unsuitableForImages = map[int64]bool{unix.FUSE_SUPER_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true, unix.ECRYPTFS_SUPER_MAGIC: true}

func (h Host) readFileSystems(context.Context) (all []fileSystem, err error) {
	dirs := []string{h.DataDir, h.KubeletDir}
	if h.NoNode {
		dirs = dirs[:1]
	}
	for _, dir := range dirs {
		path, err := existing(dir)
		if err != nil {
			return nil, err
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(path, &stat); err != nil {
			return nil, fmt.Errorf("stat file system of %s: %w", path, err)
		}
		all = append(all, fileSystem{dir: dir, kind: int64(stat.Type), isReadOnly: stat.Flags&unix.ST_RDONLY != 0, hasImages: !h.NoNode})
	}
	return all, nil
}

func decideFileSystems(all []fileSystem) (findings []Finding) {
	for i, f := range all {
		// The first one is the data directory. The other has volumes and checkpoints only, which any file system with owners can hold.
		isData := i == 0
		const move = "choose a directory on a local disk (ext4, xfs or btrfs)"
		if f.isReadOnly {
			findings = append(findings, Finding{
				Severity: Error, Problem: f.dir + " is on a file system that is mounted read-only", Breaks: "skiff does not start", When: whenStarted, Fix: "mount it writable, or " + move,
			})
			continue
		}
		found, ok := unsuitable[f.kind]
		if !ok || !isData || unsuitableForImages[f.kind] && !f.hasImages {
			continue
		}
		when := whenStarted
		if f.kind == unix.TMPFS_MAGIC || f.kind == unix.RAMFS_MAGIC {
			when = "at the next reboot"
		}
		findings = append(findings, Finding{
			Severity: Error, Problem: f.dir + " is on " + found.name, Breaks: found.breaks, When: when, Fix: move + ": --data-dir",
		})
	}
	return findings
}

const (
	// soonPercent of the capacity above a threshold is when it is going to be reached soon.
	soonPercent = 5
	// etcd refuses writes below etcdReserve; etcdSoon is when it is going to soon.
	etcdReserve = 128 << 20
	etcdSoon    = 1 << 30
)

// diskState is how full the disks are.
type diskState struct {
	dataDir    string
	dirs       map[evict.Signal]string
	signals    map[evict.Signal]evict.Observation
	thresholds []evict.Threshold
}

// disksOf says which signals are about which directory.
func (h Host) disksOf() map[evict.Signal]string {
	return map[evict.Signal]string{
		evict.NodeFsAvailable: h.KubeletDir, evict.NodeFsInodesFree: h.KubeletDir, evict.ImageFsAvailable: h.containerdDir(), evict.ImageFsInodesFree: h.containerdDir(),
	}
}

func (h Host) readDisks(context.Context) (diskState, error) {
	s := diskState{dataDir: h.DataDir, dirs: h.disksOf()}
	nodeDir, err := existing(h.KubeletDir)
	if err != nil {
		return s, err
	}
	imageDir, err := existing(h.containerdDir())
	if err != nil {
		return s, err
	}
	usage, err := evict.Observe(nodeDir, imageDir)
	if err != nil {
		return s, err
	}
	s.signals = usage.Signals
	s.thresholds, err = evict.Parse(h.Thresholds, nil, nil, nil, false)
	return s, err
}

func decideDisks(s diskState) (findings []Finding) {
	for _, t := range s.thresholds {
		seen, ok := s.signals[t.Signal]
		if !ok || seen.Capacity == 0 {
			continue
		}
		minimum := t.Minimum(seen.Capacity)
		soon := minimum + seen.Capacity*soonPercent/100
		if seen.Available > soon {
			continue
		}
		f := Finding{Severity: Warning, Breaks: "the node gets the condition DiskPressure, deletes images and evicts pods", When: fmt.Sprintf("below %s", amount(t.Signal, minimum))}
		f.Fix = "remove files, or enlarge the disk; evictionHard of a KubeletConfiguration has the threshold"
		what := s.dirs[t.Signal]
		if what == "" { // processes
			what, f.Breaks, f.Fix = "the host", "the node gets the condition PIDPressure and evicts pods; processes cannot be started", "raise kernel.pid_max and kernel.threads-max, or find what starts so many processes"
		}
		if seen.Available <= minimum {
			f.Severity, f.When = Error, whenNow
		}
		f.Problem = fmt.Sprintf("%s has %s of %s left; the threshold %s is %s", what, amount(t.Signal, seen.Available), amount(t.Signal, seen.Capacity), t.Signal, amount(t.Signal, minimum))
		findings = append(findings, f)
	}
	// containerd's directory is in the data directory, and so is etcd's.
	if disk, ok := s.signals[evict.ImageFsAvailable]; ok && disk.Available < etcdSoon {
		f := Finding{
			Severity: Warning, Problem: fmt.Sprintf("%s has %s left", s.dataDir, bytesText(disk.Available)), Breaks: "the API of a server refuses writes: etcd keeps a reserve",
			When: "below " + bytesText(etcdReserve), Fix: "remove files, or enlarge the disk",
		}
		if disk.Available < etcdReserve {
			f.Severity, f.When = Error, whenNow
		}
		findings = append(findings, f)
	}
	return findings
}

// amount is an amount of what a signal counts.
func amount(signal evict.Signal, n int64) string {
	switch signal {
	case evict.NodeFsInodesFree, evict.ImageFsInodesFree:
		return fmt.Sprintf("%d inodes", n)
	case evict.PIDAvailable:
		return fmt.Sprintf("%d processes", n)
	}
	return bytesText(n)
}
