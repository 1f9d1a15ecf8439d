package query

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

// Workload is the pods that an object of a manifest would create.
type Workload struct {
	// Origin names the object: "Deployment default/web".
	Origin string
	scheduler.HypotheticalPod
}

// ReadManifest returns the pods that the objects of a YAML or JSON manifest would create, in order. Objects without pods are skipped.
// namespace is the default for objects without one.
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

// workloadsOf returns the pods of one object, or of all objects of a List.
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
	hypothetical, err := hypotheticalPodOf(object.APIVersion+" "+object.Kind, raw)
	if hypothetical == nil || err != nil {
		return nil, err
	}
	pod := &hypothetical.Pod
	pod.Namespace = object.Metadata.Namespace
	if pod.Namespace == "" {
		pod.Namespace = namespace
	}
	if pod.Name = object.Metadata.Name; pod.Name == "" {
		pod.Name = object.Metadata.GenerateName
	}
	return []Workload{{Origin: fmt.Sprintf("%s %s/%s", object.Kind, pod.Namespace, pod.Name), HypotheticalPod: *hypothetical}}, nil
}

// hypotheticalPodOf decodes an object of a kind that has pods; it returns nil for other kinds.
func hypotheticalPodOf(kind string, raw []byte) (*scheduler.HypotheticalPod, error) {
	var err error
	read := func(object any) { err = json.Unmarshal(raw, object) }
	var s *scheduler.HypotheticalPod
	switch kind {
	case "v1 Pod":
		s = &scheduler.HypotheticalPod{}
		read(&s.Pod)
	case "v1 ReplicationController":
		var o corev1.ReplicationController
		if read(&o); o.Spec.Template != nil {
			selector := o.Spec.Selector
			if len(selector) == 0 {
				selector = o.Spec.Template.Labels // as the API server defaults it
			}
			s = replicated("v1", "ReplicationController", o.Spec.Template, o.Spec.Replicas, metav1.SetAsLabelSelector(selector))
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
		if s = job(&o.Spec.JobTemplate.Spec); o.Spec.Suspend != nil && *o.Spec.Suspend {
			s.Copies = none
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kind, err)
	}
	if s != nil && s.Copies == none {
		return nil, nil
	}
	return s, nil
}

// none is the number of copies of a controller without pods: scaled to zero, complete, or suspended.
const none = -1

// replicated returns the pods of a controller; replicas defaults to 1.
func replicated(apiVersion, kind string, template *corev1.PodTemplateSpec, replicas *int32, selector *metav1.LabelSelector) *scheduler.HypotheticalPod {
	s := &scheduler.HypotheticalPod{Pod: corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, Copies: 1}
	if replicas != nil {
		if s.Copies = int(*replicas); s.Copies <= 0 {
			s.Copies = none
		}
	}
	if selector != nil {
		s.Owner = &scheduler.HypotheticalOwner{APIVersion: apiVersion, Kind: kind, Selector: *selector}
	}
	return s
}

// job returns the pods that a Job starts with.
func job(spec *batchv1.JobSpec) *scheduler.HypotheticalPod {
	s := replicated("", "", &spec.Template, spec.Parallelism, nil)
	if spec.Completions != nil {
		s.Copies = min(s.Copies, int(*spec.Completions))
	}
	if s.Copies <= 0 || spec.Suspend != nil && *spec.Suspend {
		s.Copies = none
	}
	return s
}

// daemonTolerations returns the tolerations that the DaemonSet controller adds to every pod.
func daemonTolerations(pod *corev1.Pod) (all []corev1.Toleration) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	}
	during := []string{corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable}
	if pod.Spec.HostNetwork {
		during = append(during, corev1.TaintNodeNetworkUnavailable)
	}
	for _, key := range during {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return all
}
