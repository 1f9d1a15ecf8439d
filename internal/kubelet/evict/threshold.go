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

// Signal is an eviction signal.
type Signal string

// The signals. nodefs is the file system of the kubelet's directory, imagefs that of images and writable layers.
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

// signals maps each signal to its resource and node condition. Memory comes first because it is reclaimed first.
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

// rank returns a signal's index, negative if it is unknown.
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

// Value is a quantity, or a percentage of the capacity.
type Value struct {
	Quantity   int64
	Percentage float64 // as a fraction of 1; used if Quantity is zero
}

// of returns the quantity for a capacity.
func (v Value) of(capacity int64) int64 {
	if v.Quantity > 0 {
		return v.Quantity
	}
	return int64(float64(capacity) * v.Percentage)
}

// Threshold is the minimum of a signal.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long the threshold must be met before pods are evicted. Hard thresholds have none.
	Grace time.Duration
	// MinReclaim is how much must be available beyond the threshold before it counts as no longer met.
	MinReclaim Value
}

// Minimum is how much of a capacity must be available.
func (t Threshold) Minimum(capacity int64) int64 { return t.Value.of(capacity) }

// hard reports whether pods are evicted without a grace period.
func (t Threshold) hard() bool { return t.Grace == 0 }

// DefaultHard returns the default hard thresholds.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
	}
}

// Parse parses the thresholds of a kubelet configuration. If allocatable is set, the node's allocatable memory is
// enforced, and pods are also evicted before all of them together reach it.
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
			continue // disabled
		}
		value, err := parseValue(text)
		switch {
		case err != nil:
			return nil, err
		case strings.HasSuffix(text, "%") && value.Percentage < 0:
			return nil, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, text)
		case strings.HasSuffix(text, "%") && value.Percentage > 1:
			return nil, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, text)
		case !strings.HasSuffix(text, "%") && value.Quantity <= 0:
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
	case strings.HasSuffix(text, "%") && value.Percentage <= 0:
		return Value{}, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, text)
	case value.Quantity < 0:
		return Value{}, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal)
	}
	return value, nil
}

func parseValue(text string) (Value, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		number, err := strconv.ParseFloat(share, 32)
		// The precision is upstream's, so that thresholds are the same bytes.
		return Value{Percentage: float64(float32(number) / 100)}, err
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	return Value{Quantity: quantity.Value()}, nil
}

// Reserved returns what hard thresholds subtract from allocatable resources.
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
