package apps

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default", UID: "u-1", CreationTimestamp: kindtest.MinutesAgo(6)}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "img:1"}, {Name: "b", Image: "img:2"}}},
	}
}

func percent(s string) *intstr.IntOrString { return ptr.To(intstr.FromString(s)) }
func pods(n int32) *intstr.IntOrString     { return ptr.To(intstr.FromInt32(n)) }

// templateCases are the validations of every workload's template and selector.
func templateCases[T kind.Object](what, emptyWhat string, parts func(T) (**metav1.LabelSelector, *corev1.PodTemplateSpec)) []kindtest.Case[T] {
	change := func(f func(s **metav1.LabelSelector, t *corev1.PodTemplateSpec)) func(T) {
		return func(obj T) { f(parts(obj)) }
	}
	return []kindtest.Case[T]{
		{Name: "ordinary"},
		{Name: "empty selector", Change: change(func(s **metav1.LabelSelector, _ *corev1.PodTemplateSpec) { *s = &metav1.LabelSelector{} }), Want: []string{"spec.selector: empty selector is invalid for " + emptyWhat}},
		{Name: "selector does not match", Change: change(func(_ **metav1.LabelSelector, t *corev1.PodTemplateSpec) {
			t.Labels = map[string]string{"app": "other"}
		}), Want: []string{
			"spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
		}},
		{Name: "pods that end", Change: change(func(_ **metav1.LabelSelector, t *corev1.PodTemplateSpec) {
			t.Spec.RestartPolicy, t.Spec.ActiveDeadlineSeconds = corev1.RestartPolicyNever, ptr.To[int64](5)
		}), Want: []string{
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
			"spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in " + what + " is not Supported",
		}},
		{Name: "template is validated", Change: change(func(_ **metav1.LabelSelector, t *corev1.PodTemplateSpec) { t.Spec.Containers[0].Name = "" }), Want: []string{"spec.template.spec.containers[0].name: Required value"}},
		{Name: "selector stays", Update: true, Change: change(func(s **metav1.LabelSelector, t *corev1.PodTemplateSpec) {
			(*s).MatchLabels = map[string]string{"app": "v2"}
			t.Labels = map[string]string{"app": "v2"}
		}), Want: []string{"spec.selector: field is immutable"}},
		{Name: "template may change", Update: true, Change: change(func(_ **metav1.LabelSelector, t *corev1.PodTemplateSpec) { t.Spec.Containers[0].Image = "img:9" })},
	}
}

func TestDeployment(t *testing.T) {
	type deployment = *appsv1.Deployment
	base := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template()}}
	cases := templateCases("ReplicaSet", "deployment", func(d deployment) (**metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return &d.Spec.Selector, &d.Spec.Template
	})
	rolling := func(unavailable, surge *intstr.IntOrString) func(deployment) {
		return func(d deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: unavailable, MaxSurge: surge}}
		}
	}
	kindtest.Validations(t, Deployment, base, append(cases, []kindtest.Case[deployment]{
		{Name: "no selector", Change: func(d deployment) { d.Spec.Selector = nil }, Want: []string{"spec.selector: Required value", "spec.template.metadata.labels: `selector` does not match"}},
		{Name: "bad selector", Change: func(d deployment) {
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}
		}, Want: []string{"spec.selector.matchExpressions[0].operator: not a valid selector operator", "spec.selector: invalid label selector"}},
		{Name: "negative", Change: func(d deployment) {
			d.Spec.Replicas, d.Spec.MinReadySeconds, d.Spec.RevisionHistoryLimit, d.Spec.ProgressDeadlineSeconds = ptr.To[int32](-1), -1, ptr.To[int32](-1), ptr.To[int32](-1)
		}, Want: []string{
			"spec.replicas: must be greater than or equal to 0", "spec.minReadySeconds: must be greater than or equal to 0", "spec.revisionHistoryLimit: must be greater than or equal to 0",
			"spec.progressDeadlineSeconds: must be greater than or equal to 0", "spec.progressDeadlineSeconds: must be greater than minReadySeconds",
		}},
		{Name: "deadline", Change: func(d deployment) { d.Spec.MinReadySeconds = 600 }, Want: []string{"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"}},
		{Name: "recreate", Change: func(d deployment) { d.Spec.Strategy.Type = "Recreate" }},
		{Name: "recreate with rolling", Change: func(d deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "Recreate", RollingUpdate: &appsv1.RollingUpdateDeployment{}}
		}, Want: []string{"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"}},
		{Name: "unknown strategy", Change: func(d deployment) { d.Spec.Strategy.Type = "x" }, Want: []string{`spec.strategy: Unsupported value: {"type":"x"}: supported values: "Recreate", "RollingUpdate"`}},
		{Name: "nothing moves", Change: rolling(percent("0%"), pods(0)), Want: []string{"spec.strategy.rollingUpdate.maxUnavailable: may not be 0 when `maxSurge` is 0"}},
		{Name: "bad shares", Change: rolling(percent("110%"), percent("x")), Want: []string{"spec.strategy.rollingUpdate.maxUnavailable: must not be greater than 100%", "spec.strategy.rollingUpdate.maxSurge: a valid percent string"}},
		{Name: "surge may be large", Change: rolling(pods(1), percent("300%"))},
		{Name: "rollback", Change: func(d deployment) { d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "-3"} }, Want: []string{"spec.rollback.version: must be greater than or equal to 0"}},
		{Name: "rollback to nothing", Change: func(d deployment) { d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "x"} }, Want: []string{"metadata.annotations[deprecated.deployment.rollback.to]: invalid syntax"}},
	}...))

	stored, _ := kindtest.Create(Deployment, nil, base)
	if *stored.Spec.Replicas != 1 || stored.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "25%" || stored.Spec.Strategy.RollingUpdate.MaxUnavailable.StrVal != "25%" ||
		*stored.Spec.RevisionHistoryLimit != 10 || *stored.Spec.ProgressDeadlineSeconds != 600 || stored.Spec.Template.Spec.RestartPolicy != "Always" {
		t.Errorf("defaults %+v", stored.Spec)
	}
	if !Deployment.SpecChanged(kindtest.With(stored, func(d deployment) { d.Annotations = map[string]string{"a": "b"} }), stored) || Deployment.SpecChanged(stored, stored) {
		t.Error("generation does not follow spec and annotations")
	}
	stored.Status = appsv1.DeploymentStatus{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 2, CollisionCount: ptr.To[int32](2)}
	kindtest.Row(t, Deployment, stored, "web", "1/1", int64(2), int64(0), "6m", "a,b", "img:1,img:2", "app=web")
	kindtest.StatusUpdates(t, Deployment, stored, []kindtest.Case[deployment]{
		{Name: "same"},
		{Name: "too many", Change: func(d deployment) {
			d.Status.ReadyReplicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 3, 3, 4
		}, Want: []string{
			"status.readyReplicas: cannot be greater than status.replicas", "status.updatedReplicas: cannot be greater than status.replicas",
			"status.availableReplicas: cannot be greater than status.replicas", "status.availableReplicas: cannot be greater than readyReplicas",
		}},
		{Name: "negative", Change: func(d deployment) { d.Status.UnavailableReplicas, d.Status.TerminatingReplicas = -1, ptr.To[int32](-1) }, Want: []string{
			"status.unavailableReplicas: must be greater than or equal to 0", "status.terminatingReplicas: must be greater than or equal to 0",
		}},
		{Name: "fewer collisions", Change: func(d deployment) { d.Status.CollisionCount = ptr.To[int32](1) }, Want: []string{"status.collisionCount: Invalid value: 1: cannot be decremented"}},
		{Name: "collisions forgotten", Change: func(d deployment) { d.Status.CollisionCount = nil }, Want: []string{"status.collisionCount: Invalid value: 0: cannot be decremented"}},
	})
	kindtest.Warnings(t, Deployment.Warn(kindtest.With(stored, func(d deployment) { d.Name = "with.dot" }), nil), "metadata.name: this is used in Pod names and hostnames")
	kindtest.Warnings(t, Deployment.Warn(stored, nil))
}

func TestReplicaSet(t *testing.T) {
	type replicaSet = *appsv1.ReplicaSet
	base := &appsv1.ReplicaSet{ObjectMeta: meta("web"), Spec: appsv1.ReplicaSetSpec{Selector: selector(), Template: template()}}
	cases := templateCases("ReplicaSet", "deployment", func(rs replicaSet) (**metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return &rs.Spec.Selector, &rs.Spec.Template
	})
	kindtest.Validations(t, ReplicaSet, base, append(cases, kindtest.Case[replicaSet]{
		Name: "negative", Change: func(rs replicaSet) { rs.Spec.Replicas, rs.Spec.MinReadySeconds = ptr.To[int32](-1), -1 },
		Want: []string{"spec.replicas: must be greater than or equal to 0", "spec.minReadySeconds: must be greater than or equal to 0"},
	}))
	stored, _ := kindtest.Create(ReplicaSet, nil, base)
	stored.Status = appsv1.ReplicaSetStatus{Replicas: 3, ReadyReplicas: 2}
	kindtest.Row(t, ReplicaSet, stored, "web", int64(1), int64(3), int64(2), "6m", "a,b", "img:1,img:2", "app=web")
	kindtest.StatusUpdates(t, ReplicaSet, stored, []kindtest.Case[replicaSet]{{Name: "too many", Change: func(rs replicaSet) {
		rs.Status = appsv1.ReplicaSetStatus{Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 3, ObservedGeneration: -1}
	}, Want: []string{
		"status.fullyLabeledReplicas: cannot be greater than status.replicas", "status.readyReplicas: cannot be greater than status.replicas",
		"status.availableReplicas: cannot be greater than status.replicas", "status.availableReplicas: cannot be greater than readyReplicas",
		"status.observedGeneration: must be greater than or equal to 0",
	}}})
}

func claim(name string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
}

func TestStatefulSet(t *testing.T) {
	type statefulSet = *appsv1.StatefulSet
	base := &appsv1.StatefulSet{ObjectMeta: meta("web"), Spec: appsv1.StatefulSetSpec{Selector: selector(), Template: template(), ServiceName: "web"}}
	cases := templateCases("StatefulSet", "statefulset", func(s statefulSet) (**metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return &s.Spec.Selector, &s.Spec.Template
	})
	strategy := func(s appsv1.StatefulSetUpdateStrategy) func(statefulSet) {
		return func(set statefulSet) { set.Spec.UpdateStrategy = s }
	}
	rolling := func(partition int32, unavailable *intstr.IntOrString) *appsv1.RollingUpdateStatefulSetStrategy {
		return &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition, MaxUnavailable: unavailable}
	}
	kindtest.Validations(t, StatefulSet, base, append(cases, []kindtest.Case[statefulSet]{
		{Name: "claims", Change: func(s statefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim("data")}
			s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			// A claim replaces the volume with its name.
			s.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}}
		}},
		{Name: "mount of nothing", Change: func(s statefulSet) {
			s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}, Want: []string{`spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`}},
		{Name: "empty claim", Change: func(s statefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		}, Want: []string{"spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required", "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"}},
		{Name: "policy", Change: func(s statefulSet) { s.Spec.PodManagementPolicy = "x" }, Want: []string{"spec.podManagementPolicy: must be 'OrderedReady' or 'Parallel'"}},
		{Name: "service", Change: func(s statefulSet) { s.Spec.ServiceName = "A.b" }, Want: []string{"spec.serviceName: a lowercase RFC 1123 label"}},
		{Name: "on delete", Change: strategy(appsv1.StatefulSetUpdateStrategy{Type: "OnDelete"})},
		{Name: "on delete with rolling", Change: strategy(appsv1.StatefulSetUpdateStrategy{Type: "OnDelete", RollingUpdate: rolling(0, nil)}), Want: []string{"spec.updateStrategy.rollingUpdate: only allowed for updateStrategy 'RollingUpdate'"}},
		{Name: "unknown strategy", Change: strategy(appsv1.StatefulSetUpdateStrategy{Type: "Recreate"}), Want: []string{`spec.updateStrategy: Invalid value: {"type":"Recreate"}: must be 'RollingUpdate' or 'OnDelete'`}},
		{Name: "rolling", Change: strategy(appsv1.StatefulSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: rolling(-1, percent("0%"))}), Want: []string{
			"spec.updateStrategy.rollingUpdate.partition: must be greater than or equal to 0", "spec.updateStrategy.rollingUpdate.maxUnavailable: cannot be 0",
		}},
		{Name: "rolling too fast", Change: strategy(appsv1.StatefulSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: rolling(0, percent("101%"))}), Want: []string{"spec.updateStrategy.rollingUpdate.maxUnavailable: must not be greater than 100%"}},
		{Name: "retention", Change: func(s statefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: "x"}
		}, Want: []string{`spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "x": supported values: "Retain", "Delete"`}},
		{Name: "negative", Change: func(s statefulSet) {
			s.Spec.Replicas, s.Spec.MinReadySeconds, s.Spec.Ordinals = ptr.To[int32](-1), -1, &appsv1.StatefulSetOrdinals{Start: -1}
		}, Want: []string{"spec.replicas: must be greater than or equal to 0", "spec.minReadySeconds: must be greater than or equal to 0", "spec.ordinals.start: must be greater than or equal to 0"}},
		{Name: "no selector", Change: func(s statefulSet) { s.Spec.Selector = nil }, Want: []string{"spec.selector: Required value", "spec.template.metadata.labels: `selector` does not match"}},
		{Name: "what may change", Update: true, Change: func(s statefulSet) {
			s.Spec.Replicas, s.Spec.MinReadySeconds, s.Spec.UpdateStrategy.Type = ptr.To[int32](4), 3, "OnDelete"
			s.Spec.Ordinals, s.Spec.RevisionHistoryLimit = &appsv1.StatefulSetOrdinals{Start: 2}, ptr.To[int32](1)
		}},
		{Name: "what stays", Update: true, Change: func(s statefulSet) {
			s.Spec.ServiceName, s.Spec.PodManagementPolicy = "other", "Parallel"
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim("new")}
		}, Want: []string{"spec.serviceName: field is immutable", "spec.podManagementPolicy: field is immutable", "spec.volumeClaimTemplates: field is immutable"}},
	}...))

	// A stored set that would be refused today can still be scaled.
	broken := kindtest.With(base, func(s statefulSet) { s.Spec.Template.Spec.Containers[0].Name = "" })
	if _, errs := kindtest.Update(StatefulSet, nil, kindtest.With(broken, func(s statefulSet) { s.Spec.Replicas = ptr.To[int32](2) }), broken); len(errs) > 0 {
		t.Errorf("update of a stored set: %v", errs)
	}
	stored, _ := kindtest.Create(StatefulSet, nil, kindtest.With(base, func(s statefulSet) { s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim("data")} }))
	spec := &stored.Spec
	if spec.PodManagementPolicy != "OrderedReady" || *spec.UpdateStrategy.RollingUpdate.Partition != 0 || spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntVal != 1 ||
		spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted != "Retain" || *spec.RevisionHistoryLimit != 10 {
		t.Errorf("defaults %+v", spec)
	}
	if c := spec.VolumeClaimTemplates[0]; c.Kind != "PersistentVolumeClaim" || c.APIVersion != "v1" || c.Status.Phase != "Pending" || *c.Spec.VolumeMode != "Filesystem" {
		t.Errorf("defaults of a claim %+v", c)
	}
	stored.Status = appsv1.StatefulSetStatus{Replicas: 1, ReadyReplicas: 1}
	kindtest.Row(t, StatefulSet, stored, "web", "1/1", "6m", "a,b", "img:1,img:2")
	kindtest.StatusUpdates(t, StatefulSet, stored, []kindtest.Case[statefulSet]{{Name: "too many", Change: func(s statefulSet) {
		s.Status = appsv1.StatefulSetStatus{Replicas: 1, ReadyReplicas: 2, CurrentReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 3, ObservedGeneration: -1}
	}, Want: []string{
		"status.readyReplicas: cannot be greater than status.replicas", "status.currentReplicas: cannot be greater than status.replicas",
		"status.updatedReplicas: cannot be greater than status.replicas", "status.availableReplicas: cannot be greater than status.replicas",
		"status.availableReplicas: cannot be greater than status.readyReplicas", "status.observedGeneration: must be greater than or equal to 0",
	}}})
	odd := kindtest.With(stored, func(s statefulSet) {
		s.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("100m")
		s.Spec.RevisionHistoryLimit = ptr.To[int32](-1)
	})
	kindtest.Warnings(t, StatefulSet.Warn(odd, nil),
		`spec.volumeClaimTemplates[0].resources.requests[storage]: fractional byte value "100m" is invalid, must be an integer`, "spec.revisionHistoryLimit: a negative value retains all")
	kindtest.Warnings(t, StatefulSet.Warn(odd, stored), `spec.volumeClaimTemplates[0].Spec.resources.requests[storage]: fractional`, "spec.revisionHistoryLimit")
	if messages := StatefulSet.ValidateName("a.b", false); len(messages) == 0 {
		t.Error("a name with a dot is allowed")
	}
}

func TestDaemonSet(t *testing.T) {
	type daemonSet = *appsv1.DaemonSet
	base := &appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	cases := templateCases("DaemonSet", "daemonset", func(s daemonSet) (**metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return &s.Spec.Selector, &s.Spec.Template
	})
	rolling := func(unavailable, surge *intstr.IntOrString) func(daemonSet) {
		return func(s daemonSet) {
			s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: unavailable, MaxSurge: surge}}
		}
	}
	kindtest.Validations(t, DaemonSet, base, append(cases, []kindtest.Case[daemonSet]{
		{Name: "surge", Change: rolling(pods(0), percent("10%"))},
		{Name: "both", Change: rolling(pods(1), pods(1)), Want: []string{"spec.updateStrategy.rollingUpdate.maxSurge: may not be set when maxUnavailable is non-zero"}},
		{Name: "neither", Change: rolling(pods(0), pods(0)), Want: []string{"spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"}},
		{Name: "too much", Change: rolling(percent("101%"), pods(0)), Want: []string{"spec.updateStrategy.rollingUpdate.maxUnavailable: must not be greater than 100%"}},
		{Name: "strategy", Change: func(s daemonSet) { s.Spec.UpdateStrategy.Type = "x" }, Want: []string{`spec.updateStrategy: Unsupported value: {"type":"x"}: supported values: "RollingUpdate", "OnDelete"`}},
		{Name: "negative", Change: func(s daemonSet) { s.Spec.MinReadySeconds, s.Spec.RevisionHistoryLimit = -1, ptr.To[int32](-1) }, Want: []string{
			"spec.minReadySeconds: must be greater than or equal to 0", "spec.revisionHistoryLimit: must be greater than or equal to 0",
		}},
		{Name: "no selector", Change: func(s daemonSet) { s.Spec.Selector = nil }, Want: []string{"spec.template.metadata.labels: `selector` does not match"}},
		{Name: "bad generation", Change: func(s daemonSet) { s.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "x"} }, Want: []string{"metadata.annotations[deprecated.daemonset.template.generation]: invalid syntax"}},
	}...))

	generation := func(s daemonSet) string { return s.Annotations[appsv1.DeprecatedTemplateGeneration] }
	stored, _ := kindtest.Create(DaemonSet, nil, base)
	same, _ := kindtest.Update(DaemonSet, nil, kindtest.With(stored, func(s daemonSet) { s.Annotations, s.Spec.MinReadySeconds = nil, 4 }), stored)
	next, _ := kindtest.Update(DaemonSet, nil, kindtest.With(stored, func(s daemonSet) { s.Spec.Template.Spec.Containers[0].Image = "x" }), stored)
	if generation(stored) != "1" || generation(same) != "1" || generation(next) != "2" {
		t.Errorf("template generations %s, %s, %s", generation(stored), generation(same), generation(next))
	}
	if rolling := stored.Spec.UpdateStrategy.RollingUpdate; rolling.MaxUnavailable.IntVal != 1 || rolling.MaxSurge.IntVal != 0 || *stored.Spec.RevisionHistoryLimit != 10 {
		t.Errorf("defaults %+v", stored.Spec)
	}
	stored.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	stored.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, CurrentNumberScheduled: 4, NumberReady: 3, UpdatedNumberScheduled: 2, NumberAvailable: 1}
	kindtest.Row(t, DaemonSet, stored, "web", int64(5), int64(4), int64(3), int64(2), int64(1), "disk=ssd", "6m", "a,b", "img:1,img:2", "app=web")
	kindtest.StatusUpdates(t, DaemonSet, stored, []kindtest.Case[daemonSet]{{Name: "negative", Change: func(s daemonSet) {
		s.Status = appsv1.DaemonSetStatus{NumberReady: -1, NumberMisscheduled: -1, NumberUnavailable: -1}
	}, Want: []string{
		"status.numberReady: must be greater than or equal to 0", "status.numberMisscheduled: must be greater than or equal to 0", "status.numberUnavailable: must be greater than or equal to 0",
	}}})
}

func TestControllerRevision(t *testing.T) {
	type revision = *appsv1.ControllerRevision
	base := &appsv1.ControllerRevision{ObjectMeta: meta("r"), Data: runtime.RawExtension{Raw: []byte(`{"a":1}`)}, Revision: 3}
	data := func(raw []byte) func(revision) { return func(r revision) { r.Data.Raw = raw } }
	kindtest.Validations(t, ControllerRevision, base, []kindtest.Case[revision]{
		{Name: "ordinary"},
		{Name: "negative", Change: func(r revision) { r.Revision = -1 }, Want: []string{"revision: must be greater than or equal to 0"}},
		{Name: "no data", Change: data(nil), Want: []string{"data: Required value: data is mandatory"}},
		{Name: "null", Change: data([]byte("null")), Want: []string{"data: Required value: data is mandatory"}},
		{Name: "list", Change: data([]byte("[]")), Want: []string{"data: Required value: data must be a valid JSON object"}},
		{Name: "no JSON", Change: data([]byte("{")), Want: []string{`data: Invalid value: "<value omitted>": error parsing data: unexpected end of JSON input`}},
		{Name: "changed", Update: true, Change: data([]byte(`{"a":2}`)), Want: []string{"data: field is immutable"}},
		{Name: "renumbered", Update: true, Change: func(r revision) { r.Revision = 9 }},
	})
	kindtest.Row(t, ControllerRevision, base, "r", "<none>", int64(3), "6m")
	owned := kindtest.With(base, func(r revision) {
		r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "web", Controller: ptr.To(true)}}
	})
	kindtest.Row(t, ControllerRevision, owned, "r", "daemonset.apps/web", int64(3), "6m")
}

func TestScale(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector()}, Status: appsv1.DeploymentStatus{Replicas: 2}}
	deployment.ResourceVersion = "7"
	for _, k := range []*kind.Kind{Deployment, ReplicaSet, StatefulSet} {
		if i := len(k.Subresources) - 1; k.Subresources[i].Name != "scale" || k.Subresources[i].GVK.Kind != "Scale" {
			t.Errorf("%s has no scale", k.Plural)
		}
	}
	view := Deployment.Subresources[1].View
	obj, err := view.From(deployment)
	if err != nil {
		t.Fatal(err)
	}
	scale := obj.(*autoscalingv1.Scale)
	if scale.Spec.Replicas != 3 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" || scale.Name != "web" || scale.ResourceVersion != "7" {
		t.Errorf("scale %+v", scale)
	}
	scale.Spec.Replicas = 9
	if err := view.Apply(scale, deployment); err != nil || *deployment.Spec.Replicas != 9 {
		t.Errorf("apply: %v, %d", err, *deployment.Spec.Replicas)
	}
	scale.UID = "another"
	if err := view.Apply(scale, deployment); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "deployments.apps/scale") && !strings.Contains(err.Error(), "deployments/scale.apps") {
		t.Errorf("apply of another object's scale: %v", err)
	}
	scale.Spec.Replicas = -1
	kindtest.Errors(t, view.Validate(scale), "spec.replicas: Invalid value: must be greater than or equal to 0")
}

func TestColumnsAreDescribed(t *testing.T) {
	for _, k := range Kinds() {
		kindtest.ColumnsDescribed(t, k)
	}
}
