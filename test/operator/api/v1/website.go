// Package v1 is the version of Websites that is stored, and the hub that other versions are converted to.
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var GroupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1"}

// AddToScheme registers the types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Website{}, &WebsiteList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Website is a page that some pods serve.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WebsiteSpec   `json:"spec"`
	Status WebsiteStatus `json:"status,omitempty"`
}

type WebsiteSpec struct {
	Page Page `json:"page"`
	// Replicas is the number of pods; the mutating webhook sets it.
	Replicas *int32 `json:"replicas,omitempty"`
}

type Page struct {
	Title string `json:"title,omitempty"`
	Text  string `json:"text"`
}

type WebsiteStatus struct {
	ReadyReplicas int32              `json:"readyReplicas,omitempty"`
	Selector      string             `json:"selector,omitempty"` // of the subresource scale
	Conditions    []metav1.Condition `json:"conditions,omitempty"`
}

type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Website `json:"items"`
}

// Hub marks this version as the one that others are converted to.
func (*Website) Hub() {}

func (w *Website) DeepCopyInto(out *Website) {
	*out = *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if w.Spec.Replicas != nil {
		out.Spec.Replicas = new(*w.Spec.Replicas)
	}
	out.Status.Conditions = nil
	for _, c := range w.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *c.DeepCopy())
	}
}

func (w *Website) DeepCopyObject() runtime.Object {
	out := new(Website)
	w.DeepCopyInto(out)
	return out
}

func (l *WebsiteList) DeepCopyObject() runtime.Object {
	out := new(WebsiteList)
	*out = *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Website, len(l.Items))
	for i := range l.Items {
		l.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
