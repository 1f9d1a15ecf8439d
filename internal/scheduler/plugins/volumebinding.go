package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// volumeBinding filters nodes that a pod's volumes cannot be used on, and chooses volumes for WaitForFirstConsumer claims.
type volumeBinding struct {
	TimeoutSeconds int64
	shape          []configv1.UtilizationShapePoint
}

func newVolumeBinding(args *configv1.VolumeBindingArgs) Plugin {
	r := &volumeBinding{TimeoutSeconds: 600, shape: args.Shape}
	if args.BindTimeoutSeconds != nil {
		r.TimeoutSeconds = *args.BindTimeoutSeconds
	}
	if len(r.shape) == 0 {
		r.shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: MaxCustomScore}, {Utilization: 100, Score: 0}}
	}
	return r
}

func (*volumeBinding) Name() string { return VolumeBindingName }

func (r *volumeBinding) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if !p.HasVolumes {
		return Filter{}, nil
	}
	has, err := s.Volumes.CheckPodClaims(p.Pod)
	if err != nil {
		return Filter{}, Refuse(VolumeBindingName, true, err.Error())
	}
	if !has {
		return Filter{}, nil
	}
	claims, err := s.Volumes.PodVolumeClaims(p.Pod)
	if err != nil {
		return Filter{}, &Refusal{Plugin: VolumeBindingName, Err: err}
	}
	if claims.UnboundImmediate {
		return Filter{}, Refuse(VolumeBindingName, true, "pod has unbound immediate PersistentVolumeClaims")
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		_, reasons, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[node].Node, s.NodeInfos[node].CSINode)
		if err != nil {
			return &Refusal{Plugin: VolumeBindingName, Err: err}
		}
		if len(reasons) > 0 {
			return Refuse(VolumeBindingName, true, reasons...)
		}
		return nil
	}}, nil
}

// Score scores nodes by the utilization of the storage that would be bound or provisioned, by the shape.
func (r *volumeBinding) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	if len(snapshot.ClaimNames(p.Pod)) == 0 {
		return Scorer{}
	}
	claims, err := s.Volumes.PodVolumeClaims(p.Pod)
	if err != nil || len(claims.DelayBinding) == 0 {
		return Scorer{}
	}
	return Scorer{Volatile: true, Score: func(node int32) int64 {
		plan, _, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[node].Node, s.NodeInfos[node].CSINode)
		if err != nil {
			return 0
		}
		return r.planScore(&plan)
	}}
}

func (r *volumeBinding) planScore(plan *snapshot.PodVolumes) int64 {
	type use struct{ requested, capacity int64 }
	classes := map[string]*use{}
	useOf := func(class string) *use {
		if classes[class] == nil {
			classes[class] = &use{}
		}
		return classes[class]
	}
	for _, b := range plan.StaticBindings {
		u := useOf(volume.GetPersistentVolumeClass(b.Volume))
		u.requested += b.Claim.Spec.Resources.Requests.Storage().Value()
		u.capacity += b.Volume.Spec.Capacity.Storage().Value()
	}
	if len(plan.StaticBindings) == 0 {
		for _, p := range plan.DynamicProvisions {
			if p.Capacity == nil || p.Capacity.Capacity == nil {
				continue
			}
			u := useOf(volume.GetPersistentVolumeClaimClass(p.Claim))
			u.capacity = p.Capacity.Capacity.Value()
			u.requested += p.Claim.Spec.Resources.Requests.Storage().Value()
		}
	}
	if len(classes) == 0 {
		return 0
	}
	var sum int64
	for _, u := range classes {
		utilization := int64(100)
		if u.capacity > 0 && u.requested <= u.capacity {
			utilization = u.requested * 100 / u.capacity
		}
		sum += brokenLinear(r.shape, utilization)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

func (r *volumeBinding) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: StorageClassResource, Action: Add | Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*storagev1.StorageClass)
			return !had || !equality.Semantic.DeepEqual(before.AllowedTopologies, now.(*storagev1.StorageClass).AllowedTopologies)
		}},
		{Resource: PersistentVolumeClaim, Action: Add | Update, Helps: claimHint},
		{Resource: PersistentVolumeResource, Action: Add | Update},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel},
		{Resource: CSINodeResource, Action: Add | Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*storagev1.CSINode)
			return !had || snapshot.MigratedPluginsOf(before) != snapshot.MigratedPluginsOf(now.(*storagev1.CSINode))
		}},
		{Resource: CSIStorageCapacityResource, Action: Add | Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			limit := func(c *storagev1.CSIStorageCapacity) int64 {
				if c.MaximumVolumeSize != nil {
					return c.MaximumVolumeSize.Value()
				}
				if c.Capacity != nil {
					return c.Capacity.Value()
				}
				return -1
			}
			before, had := old.(*storagev1.CSIStorageCapacity)
			return !had || limit(now.(*storagev1.CSIStorageCapacity)) > limit(before)
		}},
		{Resource: CSIDriverResource, Action: Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			return snapshot.TracksCapacity(old.(*storagev1.CSIDriver)) && !snapshot.TracksCapacity(now.(*storagev1.CSIDriver))
		}},
	}
}
