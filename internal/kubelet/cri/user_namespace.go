package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/atomicfile"
)

// idsPerPod is the number of user and group IDs of a pod with a user namespace. The first such range is the host's own and never allocated.
const idsPerPod = 65536

// UserNamespaces allocates disjoint ranges of the host's user and group IDs to pods with hostUsers: false. The range of a pod is recorded in
// its directory and removed with it, so ranges need no explicit release and survive a restart of the kubelet.
type UserNamespaces struct {
	dir string // the directory of all pods
	mu  sync.Mutex
}

// NewUserNamespaces allocates ranges for the pods whose directories are below dir.
func NewUserNamespaces(dir string) *UserNamespaces { return &UserNamespaces{dir: dir} }

// UserNamespace is the mapping of a pod's user and group IDs to those of the host.
type UserNamespace struct {
	UIDs, GIDs []IDMapping
}

// message is the user namespace as the CRI has it. A nil UserNamespace is the host's.
func (u *UserNamespace) message() *runtimeapi.UserNamespace {
	if u == nil {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mappings(u.UIDs), Gids: mappings(u.GIDs)}
}

// IDMapping maps a range of IDs, in upstream's file format.
type IDMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type idRecord struct {
	UIDs []IDMapping `json:"uidMappings"`
	GIDs []IDMapping `json:"gidMappings"`
}

// Of returns the user namespace of a pod, nil for the host's. supported reports whether the runtime handler of that name supports user
// namespaces. The pod's directory must exist.
func (u *UserNamespaces) Of(pod *corev1.Pod, runtimeHandler string, supported bool) (*UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	if !supported && runtimeHandler != "" {
		return nil, fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", runtimeHandler)
	}
	if !supported {
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	record, err := u.read(pod.UID)
	if errors.Is(err, os.ErrNotExist) {
		record, err = u.allocate(pod.UID)
	}
	if err != nil {
		return nil, fmt.Errorf("allocate user namespace: %w", err)
	}
	return &UserNamespace{UIDs: record.UIDs, GIDs: record.GIDs}, nil
}

// allocate records the lowest free range for a pod.
func (u *UserNamespaces) allocate(uid types.UID) (idRecord, error) {
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		return idRecord{}, err
	}
	var taken []uint32
	for _, entry := range entries {
		record, err := u.read(types.UID(entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return idRecord{}, err
		}
		taken = append(taken, record.UIDs[0].HostID)
	}
	first := uint64(idsPerPod)
	for slices.Contains(taken, uint32(first)) {
		first += idsPerPod
	}
	if first+idsPerPod > 1<<32 {
		return idRecord{}, errors.New("could not find an empty slot to allocate a user namespace")
	}
	free := []IDMapping{{HostID: uint32(first), Length: idsPerPod}}
	record := idRecord{UIDs: free, GIDs: free}
	text, err := json.Marshal(record)
	if err != nil {
		return idRecord{}, err
	}
	return record, atomicfile.Write(u.file(uid), text, 0o600)
}

// read returns the recorded range of a pod. An invalid record is an error, because two pods could otherwise share users.
func (u *UserNamespaces) read(uid types.UID) (idRecord, error) {
	text, err := os.ReadFile(u.file(uid))
	if err != nil {
		return idRecord{}, err
	}
	var record idRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return idRecord{}, fmt.Errorf("read user namespace of pod %s: %w", uid, err)
	}
	valid := func(ranges []IDMapping) bool {
		return len(ranges) == 1 && ranges[0].Length == idsPerPod && ranges[0].HostID%idsPerPod == 0 && ranges[0].HostID > 0 && ranges[0].ContainerID == 0
	}
	if !valid(record.UIDs) || !slices.Equal(record.UIDs, record.GIDs) {
		return idRecord{}, fmt.Errorf("invalid user namespace record of pod %s: %s", uid, text)
	}
	return record, nil
}

func (u *UserNamespaces) file(uid types.UID) string {
	return filepath.Join(u.dir, string(uid), "userns")
}

func mappings(ranges []IDMapping) []*runtimeapi.IDMapping {
	var all []*runtimeapi.IDMapping
	for _, r := range ranges {
		all = append(all, &runtimeapi.IDMapping{HostId: r.HostID, ContainerId: r.ContainerID, Length: r.Length})
	}
	return all
}
