package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"
)

const (
	// A list is converted in batches of at most this many objects and bytes, so that neither a request nor a response holds all of it.
	maxBatchObjects = 500
	maxBatchBytes   = 4 << 20
	// maxConverted bounds the response to one batch: objects may grow in conversion, but not without limit.
	maxConverted = 32 << 20
)

// The causes of failed conversions, as upstream's metrics name them.
const (
	failureCall      = "conversion_webhook_call_failure"
	failureMalformed = "conversion_webhook_malformed_response_failure"
	failurePartial   = "conversion_webhook_partial_response_failure"
	failureInvalid   = "conversion_webhook_invalid_converted_object_failure"
)

// Converter converts the objects of a custom resource between its versions by calling a webhook.
type Converter struct {
	client        *Client
	metrics       *Metrics
	definition    string
	reviewVersion string
}

// NewConverter makes the converter of a definition with the conversion strategy Webhook.
func (c *Clients) NewConverter(crd *apiextensionsv1.CustomResourceDefinition) (*Converter, error) {
	conversion := crd.Spec.Conversion
	if conversion == nil || conversion.Strategy != apiextensionsv1.WebhookConverter || conversion.Webhook == nil || conversion.Webhook.ClientConfig == nil {
		return nil, fmt.Errorf("definition %s has no conversion webhook", crd.Name)
	}
	client, err := c.NewClient(ConversionConfig(conversion.Webhook.ClientConfig), maxConverted)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook of %s: %w", crd.Name, err)
	}
	converter := &Converter{client: client, metrics: c.metrics, definition: crd.Name}
	for _, version := range conversion.Webhook.ConversionReviewVersions {
		if version == "v1" || version == "v1beta1" {
			converter.reviewVersion = version
			return converter, nil
		}
	}
	return nil, fmt.Errorf("conversion webhook of %s: no supported conversion review versions", crd.Name)
}

// Convert returns the objects in the wanted version, in order. Objects that have it are returned as they are. The arguments are not changed.
func (c *Converter) Convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	started := time.Now()
	converted, err := c.convert(ctx, objects, to)
	if i := slices.IndexFunc(objects, func(obj *unstructured.Unstructured) bool { return obj.GetAPIVersion() != to.String() }); i >= 0 {
		from := objects[i].GroupVersionKind().Version
		c.metrics.definitionSeconds.WithLabelValues(c.definition, from, to.Version, strconv.FormatBool(err == nil)).Observe(time.Since(started).Seconds())
	}
	return converted, err
}

func (c *Converter) convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	converted := make([]*unstructured.Unstructured, len(objects))
	batch := &conversionBatch{converter: c, to: to, isList: len(objects) > 1, converted: converted}
	for i, obj := range objects {
		switch {
		case obj.GetAPIVersion() == to.String():
			converted[i] = obj
			continue
		case isEmpty(obj):
			converted[i] = obj.DeepCopy()
			converted[i].SetAPIVersion(to.String())
			continue
		}
		if err := batch.add(ctx, obj, i); err != nil {
			return nil, err
		}
	}
	return converted, batch.send(ctx)
}

// isEmpty reports whether the object has only apiVersion and kind. It needs no webhook.
func isEmpty(obj *unstructured.Unstructured) bool {
	_, hasVersion := obj.Object["apiVersion"]
	_, hasKind := obj.Object["kind"]
	return len(obj.Object) == 2 && hasVersion && hasKind
}

// conversionBatch is a number of objects that are converted with one request.
type conversionBatch struct {
	converter *Converter
	to        schema.GroupVersion
	// isList: upstream's messages for lists apply.
	isList bool
	// converted are all results. positions are those of the batch's objects in it.
	converted []*unstructured.Unstructured
	originals []*unstructured.Unstructured
	positions []int
	encoded   []runtime.RawExtension
	bytes     int
}

// add adds an object, after sending the batch if it is full.
func (b *conversionBatch) add(ctx context.Context, obj *unstructured.Unstructured, position int) error {
	data, err := obj.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode %s for its conversion: %w", obj.GetKind(), err)
	}
	if len(b.encoded) == maxBatchObjects || len(b.encoded) > 0 && b.bytes+len(data) > maxBatchBytes {
		if err := b.send(ctx); err != nil {
			return err
		}
	}
	b.originals, b.positions = append(b.originals, obj), append(b.positions, position)
	b.encoded, b.bytes = append(b.encoded, runtime.RawExtension{Raw: data}), b.bytes+len(data)
	return nil
}

// send converts the objects of the batch and empties it.
func (b *conversionBatch) send(ctx context.Context) error {
	if len(b.encoded) == 0 {
		return nil
	}
	started := time.Now()
	failure, err := b.exchange(ctx)
	b.converter.metrics.conversion(time.Since(started), failure)
	b.originals, b.positions, b.encoded, b.bytes = b.originals[:0], b.positions[:0], b.encoded[:0], 0
	return err
}

// exchange sends the request and checks the response.
func (b *conversionBatch) exchange(ctx context.Context) (failure string, err error) {
	gvk := b.originals[0].GroupVersionKind()
	uid := types.UID(uuid.NewString())
	body, err := json.Marshal(&apiextensionsv1.ConversionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: apiextensionsv1.GroupName + "/" + b.converter.reviewVersion, Kind: "ConversionReview"},
		Request:  &apiextensionsv1.ConversionRequest{UID: uid, DesiredAPIVersion: b.to.String(), Objects: b.encoded},
	})
	if err != nil {
		return failureCall, err
	}
	answer, err := b.converter.client.Review(ctx, body)
	if err != nil {
		return failureCall, fmt.Errorf("conversion webhook for %v failed: %w", gvk, err)
	}
	objects, err := b.converter.verify(answer, uid)
	if err != nil {
		return failureMalformed, fmt.Errorf("conversion webhook for %v failed: %w", gvk, err)
	}
	if len(objects) != len(b.encoded) {
		return failurePartial, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", gvk, len(objects), len(b.encoded))
	}
	for i := range objects {
		converted, err := b.accept(i, objects[i].Raw)
		if err != nil {
			return failureInvalid, fmt.Errorf("conversion webhook for %v returned %w", gvk, err)
		}
		b.converted[b.positions[i]] = converted
	}
	return "", nil
}

// verify decodes a ConversionReview and returns the converted objects. v1beta1 is not checked as strictly, as upstream.
func (c *Converter) verify(answer []byte, uid types.UID) ([]runtime.RawExtension, error) {
	var review apiextensionsv1.ConversionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(answer, &review); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	strict := c.reviewVersion == "v1"
	if want := apiextensionsv1.SchemeGroupVersion.WithKind("ConversionReview"); strict && review.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, review.GroupVersionKind())
	}
	switch response := review.Response; {
	case response == nil:
		return nil, errors.New("no response provided")
	case strict && response.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	case response.Result.Status != metav1.StatusSuccess && response.Result.Message != "":
		return nil, errors.New(response.Result.Message)
	case response.Result.Status != metav1.StatusSuccess:
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", response.Result.Status)
	}
	return review.Response.ConvertedObjects, nil
}

// accept checks a converted object: only labels and annotations of the metadata may differ from the original's.
func (b *conversionBatch) accept(i int, data []byte) (*unstructured.Unstructured, error) {
	invalid, metadata := "invalid object", "invalid metadata"
	at := " at index 0"
	if b.isList {
		at = fmt.Sprintf(" at index %d", i)
		invalid, metadata = "invalid converted object"+at, "invalid metadata in object"+at
	}
	original, converted := b.originals[i], &unstructured.Unstructured{}
	if err := converted.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("%s: %w", invalid, err)
	}
	version := invalid
	if !b.isList {
		version += at
	}
	if got := converted.GroupVersionKind().GroupVersion(); got != b.to {
		return nil, fmt.Errorf("%s: invalid groupVersion (expected %v, received %v)", version, b.to, got)
	}
	if got := converted.GetKind(); got != original.GetKind() {
		return nil, fmt.Errorf("%s: invalid kind (expected %v, received %v)", version, original.GetKind(), got)
	}
	if err := checkIdentity(original, converted); err != nil {
		return nil, fmt.Errorf("%s: %w", invalid, err)
	}
	if err := restoreMetadata(original, converted); err != nil {
		return nil, fmt.Errorf("%s: %w", metadata, err)
	}
	return converted, nil
}
