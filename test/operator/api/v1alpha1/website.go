// Package v1alpha1 is the version that Websites once had: the page is one text, whose first line is the title, and the replicas are called size.
package v1alpha1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	v1 "skiff/test/operator/api/v1"
)

var GroupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1alpha1"}

// AddToScheme registers the type.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Website{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Website is a page that some pods serve.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WebsiteSpec      `json:"spec"`
	Status v1.WebsiteStatus `json:"status,omitempty"`
}

type WebsiteSpec struct {
	Text string `json:"text"`
	Size *int32 `json:"size,omitempty"`
}

// ConvertTo converts to the hub.
func (w *Website) ConvertTo(hub conversion.Hub) error {
	out, ok := hub.(*v1.Website)
	if !ok {
		return fmt.Errorf("cannot convert to %T", hub)
	}
	title, text, _ := strings.Cut(w.Spec.Text, "\n")
	from := w.DeepCopyObject().(*Website)
	out.ObjectMeta, out.Status = from.ObjectMeta, from.Status
	out.Spec = v1.WebsiteSpec{Page: v1.Page{Title: title, Text: text}, Replicas: from.Spec.Size}
	return nil
}

// ConvertFrom converts from the hub.
func (w *Website) ConvertFrom(hub conversion.Hub) error {
	in, ok := hub.(*v1.Website)
	if !ok {
		return fmt.Errorf("cannot convert from %T", hub)
	}
	from := in.DeepCopyObject().(*v1.Website)
	w.ObjectMeta, w.Status = from.ObjectMeta, from.Status
	w.Spec = WebsiteSpec{Text: from.Spec.Page.Title, Size: from.Spec.Replicas}
	if text := from.Spec.Page.Text; text != "" {
		w.Spec.Text += "\n" + text
	}
	return nil
}

func (w *Website) DeepCopyObject() runtime.Object {
	out := new(Website)
	*out = *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if w.Spec.Size != nil {
		out.Spec.Size = new(*w.Spec.Size)
	}
	out.Status.Conditions = nil
	for _, c := range w.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *c.DeepCopy())
	}
	return out
}
