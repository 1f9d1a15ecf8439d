package core

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Event is stored once and served in two groups: as v1, and as events.k8s.io/v1 with its newer field names. It expires.
var Event = kind.Of(kind.Definition[*corev1.Event]{
	GVK: corev1.SchemeGroupVersion.WithKind("Event"), Plural: "events", Short: []string{"ev"}, Namespaced: true,
	TTL:  time.Hour,
	List: &corev1.EventList{},
	Versions: []kind.Version{
		{GVK: corev1.SchemeGroupVersion.WithKind("Event")},
		{
			GVK:                eventsv1.SchemeGroupVersion.WithKind("Event"),
			New:                func() kind.Object { return &eventsv1.Event{} },
			NewList:            func() runtime.Object { return &eventsv1.EventList{} },
			ToStorageVersion:   func(obj kind.Object) (kind.Object, error) { return eventToStorageVersion(obj.(*eventsv1.Event)), nil },
			FromStorageVersion: func(obj kind.Object) (kind.Object, error) { return eventFromStorageVersion(obj.(*corev1.Event)), nil },
			Fields: map[string]string{
				"reason":                    "reason",
				"type":                      "type",
				"regarding.kind":            "involvedObject.kind",
				"regarding.namespace":       "involvedObject.namespace",
				"regarding.name":            "involvedObject.name",
				"regarding.uid":             "involvedObject.uid",
				"regarding.apiVersion":      "involvedObject.apiVersion",
				"regarding.resourceVersion": "involvedObject.resourceVersion",
				"regarding.fieldPath":       "involvedObject.fieldPath",
				"reportingController":       "reportingComponent",
			},
		},
	},

	// Old clients use any valid path segment as the name of an event.
	ValidateName:        path.ValidatePathSegmentName,
	Validate:            validateEvent,
	AllowCreateOnUpdate: true,

	Fields: map[string]func(*corev1.Event) string{
		"involvedObject.kind":            func(obj *corev1.Event) string { return obj.InvolvedObject.Kind },
		"involvedObject.namespace":       func(obj *corev1.Event) string { return obj.InvolvedObject.Namespace },
		"involvedObject.name":            func(obj *corev1.Event) string { return obj.InvolvedObject.Name },
		"involvedObject.uid":             func(obj *corev1.Event) string { return string(obj.InvolvedObject.UID) },
		"involvedObject.apiVersion":      func(obj *corev1.Event) string { return obj.InvolvedObject.APIVersion },
		"involvedObject.resourceVersion": func(obj *corev1.Event) string { return obj.InvolvedObject.ResourceVersion },
		"involvedObject.fieldPath":       func(obj *corev1.Event) string { return obj.InvolvedObject.FieldPath },
		"reason":                         func(obj *corev1.Event) string { return obj.Reason },
		"reportingComponent":             func(obj *corev1.Event) string { return obj.ReportingController },
		"source":                         func(obj *corev1.Event) string { return orElse(obj.Source.Component, obj.ReportingController) },
		"type":                           func(obj *corev1.Event) string { return obj.Type },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.Column("Last Seen", "string", corev1.Event{}.SwaggerDoc()["lastTimestamp"]),
		kind.Column("Type", "string", corev1.Event{}.SwaggerDoc()["type"]),
		kind.Column("Reason", "string", corev1.Event{}.SwaggerDoc()["reason"]),
		kind.Column("Object", "string", corev1.Event{}.SwaggerDoc()["involvedObject"]),
		kind.Wide("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		kind.Wide("Source", "string", corev1.Event{}.SwaggerDoc()["source"]),
		kind.Column("Message", "string", corev1.Event{}.SwaggerDoc()["message"]),
		kind.Wide("First Seen", "string", corev1.Event{}.SwaggerDoc()["firstTimestamp"]),
		kind.Wide("Count", "string", corev1.Event{}.SwaggerDoc()["count"]),
		{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	},
	Row: eventRow,
})

func eventToStorageVersion(in *eventsv1.Event) *corev1.Event {
	in = in.DeepCopy()
	return &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: in.ObjectMeta,
		EventTime:  in.EventTime, Series: (*corev1.EventSeries)(in.Series),
		ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
		Action: in.Action, Reason: in.Reason, Type: in.Type,
		InvolvedObject: in.Regarding, Related: in.Related, Message: in.Note, Source: in.DeprecatedSource,
		FirstTimestamp: in.DeprecatedFirstTimestamp, LastTimestamp: in.DeprecatedLastTimestamp, Count: in.DeprecatedCount,
	}
}

func eventFromStorageVersion(in *corev1.Event) *eventsv1.Event {
	in = in.DeepCopy()
	return &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta: in.ObjectMeta,
		EventTime:  in.EventTime, Series: (*eventsv1.EventSeries)(in.Series),
		ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
		Action: in.Action, Reason: in.Reason, Type: in.Type,
		Regarding: in.InvolvedObject, Related: in.Related, Note: in.Message, DeprecatedSource: in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp, DeprecatedLastTimestamp: in.LastTimestamp, DeprecatedCount: in.Count,
	}
}

// validateEvent is strict for events.k8s.io/v1 and lenient for v1.
func validateEvent(req *kind.Request, obj, old *corev1.Event) field.ErrorList {
	strict := req != nil && req.APIVersion == eventsv1.SchemeGroupVersion
	errs := validateEventLegacy(obj, strict)
	switch {
	case !strict:
		return errs
	case old == nil:
		return append(errs, validateNewEvent(obj)...)
	}
	return append(errs, validateEventUpdate(obj, old)...)
}

func validateEventLegacy(obj *corev1.Event, strict bool) (errs field.ErrorList) {
	involved := obj.InvolvedObject.Namespace
	mismatch := field.Invalid(field.NewPath("involvedObject", "namespace"), involved, "does not match event.namespace")
	if obj.EventTime.IsZero() {
		// An event about a cluster-scoped object is in namespace "default".
		if (involved == "" && obj.Namespace != "" && obj.Namespace != metav1.NamespaceDefault) || (involved != "" && involved != obj.Namespace) {
			errs = append(errs, mismatch)
		}
		return errs
	}
	if involved == "" && obj.Namespace != metav1.NamespaceDefault && obj.Namespace != metav1.NamespaceSystem {
		errs = append(errs, mismatch)
	}
	controller := "reportingComponent"
	if strict {
		controller = "reportingController"
	}
	errs = append(errs, required(field.NewPath(controller), obj.ReportingController)...)
	errs = append(errs, kind.Invalid(field.NewPath(controller), obj.ReportingController, validation.IsQualifiedName(obj.ReportingController))...)
	atMost := func(name, value string, most int) {
		if len(value) > most {
			errs = append(errs, field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", most)))
		}
	}
	for _, msg := range []struct{ name, value string }{{"reportingInstance", obj.ReportingInstance}, {"action", obj.Action}, {"reason", obj.Reason}} {
		errs = append(errs, required(field.NewPath(msg.name), msg.value)...)
		atMost(msg.name, msg.value, 128)
	}
	atMost("message", obj.Message, 1024)
	return errs
}

// validateNewEvent requires the new fields and refuses the deprecated ones.
func validateNewEvent(obj *corev1.Event) field.ErrorList {
	errs := kind.Invalid(field.NewPath("metadata", "name"), obj.Name, apivalidation.NameIsDNSSubdomain(obj.Name, false))
	errs = append(errs, validateEventSeries(obj)...)
	if obj.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if obj.Type != corev1.EventTypeNormal && obj.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", obj.Type)))
	}
	for _, deprecated := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !obj.FirstTimestamp.IsZero()},
		{"lastTimestamp", !obj.LastTimestamp.IsZero()},
		{"count", obj.Count != 0},
		{"source", obj.Source != corev1.EventSource{}},
	} {
		if deprecated.set {
			errs = append(errs, field.Invalid(field.NewPath(deprecated.name), "", "needs to be unset"))
		}
	}
	return errs
}

func validateEventSeries(obj *corev1.Event) (errs field.ErrorList) {
	if obj.Series == nil {
		return nil
	}
	if obj.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if obj.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateEventUpdate: only the series and the metadata of an event may change.
func validateEventUpdate(obj, old *corev1.Event) (errs field.ErrorList) {
	if !reflect.DeepEqual(obj.Series, old.Series) {
		errs = append(errs, validateEventSeries(obj)...)
	}
	keep := func(name string, value, before any) {
		errs = append(errs, apivalidation.ValidateImmutableField(value, before, field.NewPath(name))...)
	}
	keep("involvedObject", obj.InvolvedObject, old.InvolvedObject)
	keep("reason", obj.Reason, old.Reason)
	keep("message", obj.Message, old.Message)
	keep("source", obj.Source, old.Source)
	keep("firstTimestamp", obj.FirstTimestamp, old.FirstTimestamp)
	keep("lastTimestamp", obj.LastTimestamp, old.LastTimestamp)
	keep("count", obj.Count, old.Count)
	keep("type", obj.Type, old.Type)
	// Some encodings keep nanoseconds and some do not.
	if !obj.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		keep("eventTime", obj.EventTime, old.EventTime)
	}
	keep("action", obj.Action, old.Action)
	keep("related", obj.Related, old.Related)
	keep("reportingController", obj.ReportingController, old.ReportingController)
	keep("reportingInstance", obj.ReportingInstance, old.ReportingInstance)
	return errs
}

func eventRow(obj *corev1.Event, now time.Time) []any {
	since := func(at metav1.MicroTime) string { return kind.Age(metav1.Time(at), now) }
	first := kind.Age(obj.FirstTimestamp, now)
	if obj.FirstTimestamp.IsZero() {
		first = since(obj.EventTime)
	}
	last := first
	if !obj.LastTimestamp.IsZero() {
		last = kind.Age(obj.LastTimestamp, now)
	}
	count := obj.Count
	if obj.Series != nil {
		last, count = since(obj.Series.LastObservedTime), obj.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(obj.InvolvedObject.Kind)
	if obj.InvolvedObject.Name != "" {
		target += "/" + obj.InvolvedObject.Name
	}
	source := orElse(obj.Source.Component, obj.ReportingController)
	if host := orElse(obj.Source.Host, obj.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{
		last, obj.Type, obj.Reason, target, obj.InvolvedObject.FieldPath, source,
		strings.TrimSpace(obj.Message), first, int64(count), obj.Name,
	}
}
