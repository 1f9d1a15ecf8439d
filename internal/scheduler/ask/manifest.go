package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"skiff/internal/scheduler"
)

// Workload is pods that an object of a manifest would have.
type Workload struct {
	// Origin names the object: "Deployment default/web".
	Origin string
	scheduler.Supposed
}

// ReadManifest finds the pods that the objects of a manifest would have, YAML or JSON, in order. Objects without pods are passed over.
// namespace is for objects that name none.
func ReadManifest(r io.Reader, namespace string) ([]Workload, error) {
	var all []Workload
	for documents := yaml.NewYAMLOrJSONDecoder(r, 4096); ; {
		var raw json.RawMessage
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		found, err := workloadsOf(raw, namespace)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
}

// workloadsOf finds the pods of one object, or of all objects of a list.
func workloadsOf(raw []byte, namespace string) ([]Workload, error) {
	var object struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if object.Kind == "List" {
		var all []Workload
		for _, item := range object.Items {
			found, err := workloadsOf(item, namespace)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	supposed, err := supposedBy(object.APIVersion+" "+object.Kind, raw)
	if supposed == nil || err != nil {
		return nil, err
	}
	pod := &supposed.Pod
	pod.Namespace = object.Metadata.Namespace
	if pod.Namespace == "" {
		pod.Namespace = namespace
	}
	if pod.Name = object.Metadata.Name; pod.Name == "" {
		pod.Name = object.Metadata.GenerateName
	}
	return []Workload{{Origin: fmt.Sprintf("%s %s/%s", object.Kind, pod.Namespace, pod.Name), Supposed: *supposed}}, nil
}

// supposedBy reads an object of a kind that has pods; nil for the others.
func supposedBy(kind string, raw []byte) (*scheduler.Supposed, error) {
	var err error
	read := func(object any) { err = json.Unmarshal(raw, object) }
	var s *scheduler.Supposed
	switch kind {
	case "v1 Pod":
		s = &scheduler.Supposed{}
		read(&s.Pod)
	case "v1 ReplicationController":
		var o corev1.ReplicationController
		if read(&o); o.Spec.Template != nil {
			s = replicated("v1", "ReplicationController", o.Spec.Template, o.Spec.Replicas, metav1.SetAsLabelSelector(o.Spec.Selector))
		}
	case "apps/v1 Deployment":
		var o appsv1.Deployment
		read(&o)
		s = replicated("apps/v1", "ReplicaSet", &o.Spec.Template, o.Spec.Replicas, o.Spec.Selector)
	case "apps/v1 ReplicaSet":
		var o appsv1.ReplicaSet
		read(&o)
		s = replicated("apps/v1", "ReplicaSet", &o.Spec.Template, o.Spec.Replicas, o.Spec.Selector)
	case "apps/v1 StatefulSet":
		var o appsv1.StatefulSet
		read(&o)
		s = replicated("apps/v1", "StatefulSet", &o.Spec.Template, o.Spec.Replicas, o.Spec.Selector)
	case "apps/v1 DaemonSet":
		var o appsv1.DaemonSet
		read(&o)
		s = replicated("", "", &o.Spec.Template, nil, nil)
		s.EveryNode = true
		s.Pod.Spec.Tolerations = append(s.Pod.Spec.Tolerations, daemonTolerations(&s.Pod)...)
	case "batch/v1 Job":
		var o batchv1.Job
		read(&o)
		s = job(&o.Spec)
	case "batch/v1 CronJob":
		var o batchv1.CronJob
		read(&o)
		s = job(&o.Spec.JobTemplate.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kind, err)
	}
	if s != nil && s.Copies < 0 {
		return nil, nil // scaled to zero
	}
	return s, nil
}

// replicated are the pods of a controller; by default one.
func replicated(apiVersion, kind string, template *corev1.PodTemplateSpec, replicas *int32, selector *metav1.LabelSelector) *scheduler.Supposed {
	s := &scheduler.Supposed{Pod: corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, Copies: 1}
	if replicas != nil {
		if s.Copies = int(*replicas); s.Copies == 0 {
			s.Copies = -1
		}
	}
	if selector != nil {
		s.Owner = &scheduler.SupposedOwner{APIVersion: apiVersion, Kind: kind, Selector: *selector}
	}
	return s
}

func job(spec *batchv1.JobSpec) *scheduler.Supposed {
	s := replicated("", "", &spec.Template, spec.Parallelism, nil)
	if spec.Completions != nil {
		s.Copies = min(s.Copies, int(*spec.Completions))
	}
	return s
}

// daemonTolerations are those every pod of a DaemonSet is given.
func daemonTolerations(pod *corev1.Pod) (all []corev1.Toleration) {
	for key, effect := range map[string]corev1.TaintEffect{
		corev1.TaintNodeNotReady: corev1.TaintEffectNoExecute, corev1.TaintNodeUnreachable: corev1.TaintEffectNoExecute,
		corev1.TaintNodeDiskPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
		corev1.TaintNodePIDPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeUnschedulable: corev1.TaintEffectNoSchedule,
	} {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
	if pod.Spec.HostNetwork {
		all = append(all, corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return all
}
