package evict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is something the node can run short of.
type Signal string

// The signals. nodefs is the disk of the pods' data, imagefs that of images and containers' own layers.
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFsAvailable            Signal = "nodefs.available"
	NodeFsInodesFree           Signal = "nodefs.inodesFree"
	ImageFsAvailable           Signal = "imagefs.available"
	ImageFsInodesFree          Signal = "imagefs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePIDs   corev1.ResourceName = "pids"
)

// signals says what each signal is about, and which condition it is for the node. Memory stands first: it is reclaimed first, because the
// kernel will not wait.
var signals = []struct {
	name      Signal
	resource  corev1.ResourceName
	condition corev1.NodeConditionType
}{
	{MemoryAvailable, corev1.ResourceMemory, corev1.NodeMemoryPressure},
	{AllocatableMemoryAvailable, corev1.ResourceMemory, corev1.NodeMemoryPressure},
	{NodeFsAvailable, corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	{NodeFsInodesFree, resourceInodes, corev1.NodeDiskPressure},
	{ImageFsAvailable, corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	{ImageFsInodesFree, resourceInodes, corev1.NodeDiskPressure},
	{PIDAvailable, resourcePIDs, corev1.NodePIDPressure},
}

// rank is a signal's place among the signals, negative for one that is unknown.
func (s Signal) rank() int {
	for i := range signals {
		if signals[i].name == s {
			return i
		}
	}
	return -1
}

func (s Signal) resource() corev1.ResourceName       { return signals[s.rank()].resource }
func (s Signal) condition() corev1.NodeConditionType { return signals[s.rank()].condition }

// Value is an amount, or a share of what there is.
type Value struct {
	Amount int64
	Share  float64 // counts where Amount is zero
}

// of is the amount out of a capacity.
func (v Value) of(capacity int64) int64 {
	if v.Amount > 0 {
		return v.Amount
	}
	return int64(float64(capacity) * v.Share)
}

// Threshold is how little of something may be left.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long it may be less before pods are evicted. Hard thresholds have none.
	Grace time.Duration
	// MinReclaim is how much more than the threshold must be free before the node is content again.
	MinReclaim Value
}

// hard tells thresholds at which pods get no time.
func (t Threshold) hard() bool { return t.Grace == 0 }

// DefaultHard are the thresholds of a node that is told none.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
	}
}

// Parse reads thresholds as a kubelet's configuration has them. allocatable says that what all pods may use together is enforced: then
// they are evicted before they use it all up.
func Parse(hard, soft, softGrace, minReclaim map[string]string, allocatable bool) ([]Threshold, error) {
	all, err := parseThresholds(hard)
	if err != nil {
		return nil, err
	}
	softs, err := parseThresholds(soft)
	if err != nil {
		return nil, err
	}
	for i := range softs {
		text, ok := softGrace[string(softs[i].Signal)]
		if !ok {
			return nil, fmt.Errorf("grace period must be specified for the soft eviction threshold %v", softs[i].Signal)
		}
		if softs[i].Grace, err = time.ParseDuration(text); err != nil {
			return nil, err
		}
		if softs[i].Grace < 0 {
			return nil, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", text)
		}
	}
	all = append(all, softs...)
	for name, text := range minReclaim {
		value, err := parseMinReclaim(Signal(name), text)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if all[i].Signal == Signal(name) {
				all[i].MinReclaim = value
			}
		}
	}
	if allocatable {
		for _, t := range slices.Clone(all) {
			if t.Signal == MemoryAvailable && t.hard() {
				all = append(all, Threshold{Signal: AllocatableMemoryAvailable, Value: t.Value, MinReclaim: t.MinReclaim})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Threshold) int { return a.Signal.rank() - b.Signal.rank() })
	return all, nil
}

func parseThresholds(texts map[string]string) ([]Threshold, error) {
	var all []Threshold
	for name, text := range texts {
		signal := Signal(name)
		if signal.rank() < 0 {
			return nil, fmt.Errorf("unsupported eviction signal %v", signal)
		}
		if text == "0%" || text == "100%" {
			continue // this threshold is switched off
		}
		value, err := parseValue(text)
		switch {
		case err != nil:
			return nil, err
		case strings.HasSuffix(text, "%") && value.Share < 0:
			return nil, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, text)
		case strings.HasSuffix(text, "%") && value.Share > 1:
			return nil, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, text)
		case !strings.HasSuffix(text, "%") && value.Amount <= 0:
			return nil, fmt.Errorf("eviction threshold %v must be positive: %s", signal, text)
		}
		all = append(all, Threshold{Signal: signal, Value: value})
	}
	return all, nil
}

func parseMinReclaim(signal Signal, text string) (Value, error) {
	if signal.rank() < 0 {
		return Value{}, fmt.Errorf("unsupported eviction signal %v", signal)
	}
	value, err := parseValue(text)
	switch {
	case err != nil:
		return Value{}, err
	case strings.HasSuffix(text, "%") && value.Share <= 0:
		return Value{}, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, text)
	case value.Amount < 0:
		return Value{}, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal)
	}
	return value, nil
}

func parseValue(text string) (Value, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		number, err := strconv.ParseFloat(share, 32)
		// The precision is upstream's, so that thresholds are the same bytes.
		return Value{Share: float64(float32(number) / 100)}, err
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	return Value{Amount: quantity.Value()}, nil
}

// Reserved is what hard thresholds keep from pods: it is not allocatable.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, t := range thresholds {
		name := corev1.ResourceName("")
		switch {
		case !t.hard():
		case t.Signal == MemoryAvailable:
			name = corev1.ResourceMemory
		case t.Signal == NodeFsAvailable:
			name = corev1.ResourceEphemeralStorage
		}
		if whole, ok := capacity[name]; ok {
			list[name] = *resource.NewQuantity(t.Value.of(whole.Value()), resource.BinarySI)
		}
	}
	return list
}
