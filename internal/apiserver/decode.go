package apiserver

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apijson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
)

// readBody reads the request's body up to the server's limit.
func (s *Server) readBody(req *request) ([]byte, error) {
	defer req.Body.Close()
	limit := s.limits.Body
	tooLarge := apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	if req.ContentLength > limit {
		return nil, tooLarge
	}
	var body bytes.Buffer
	if req.ContentLength > 0 {
		body.Grow(int(min(req.ContentLength, largeBody)) + bytes.MinRead) // more is allocated when it arrives
	}
	defer endReadWithContext(req)()
	if err := readWaiting(req, &body, io.LimitReader(req.Body, limit+1)); err != nil {
		if req.ctx.Err() != nil {
			return nil, req.ctx.Err()
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read body: %v", err))
	}
	if int64(body.Len()) > limit {
		return nil, tooLarge
	}
	return body.Bytes(), s.acquireLarge(req, body.Len())
}

// readWaiting reads a body, and returns the request's seats while the client does not send it.
func readWaiting(req *request, body *bytes.Buffer, from io.Reader) error {
	wait := req.w.wait
	if wait == nil || req.ContentLength == 0 {
		_, err := body.ReadFrom(from)
		return err
	}
	wait.begin()
	_, err := body.ReadFrom(from)
	return wait.end(err)
}

// endReadWithContext makes reads of the body fail when the request's context is done, even while the client sends nothing. The returned
// function must be called before the handler returns.
func endReadWithContext(req *request) (release func()) {
	var deadlineSet sync.WaitGroup
	deadlineSet.Add(1)
	stop := context.AfterFunc(req.ctx, func() {
		defer deadlineSet.Done()
		_ = http.NewResponseController(req.w).SetReadDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			deadlineSet.Wait()
		}
	}
}

// parseOptions parses and validates the query parameters of a write.
func parseOptions[T any](query url.Values, kindName string, options *T, convert func(*url.Values, *T) error, validate func(*T) field.ErrorList) error {
	if len(query) > 0 {
		if err := convert(&query, options); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := validate(options); len(errs) > 0 {
		return kind.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kindName}, "", errs)
	}
	return nil
}

func optionsType(name string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: name, APIVersion: metav1.SchemeGroupVersion.String()}
}

func parseCreateOptions(query url.Values) (*metav1.CreateOptions, error) {
	options := &metav1.CreateOptions{}
	err := parseOptions(query, "CreateOptions", options, func(in *url.Values, out *metav1.CreateOptions) error {
		return metav1.Convert_url_Values_To_v1_CreateOptions(in, out, nil)
	}, validation.ValidateCreateOptions)
	options.TypeMeta = optionsType("CreateOptions")
	return options, err
}

func parseUpdateOptions(query url.Values) (*metav1.UpdateOptions, error) {
	options := &metav1.UpdateOptions{}
	err := parseOptions(query, "UpdateOptions", options, func(in *url.Values, out *metav1.UpdateOptions) error {
		return metav1.Convert_url_Values_To_v1_UpdateOptions(in, out, nil)
	}, validation.ValidateUpdateOptions)
	options.TypeMeta = optionsType("UpdateOptions")
	return options, err
}

func parsePatchOptions(query url.Values, patchType types.PatchType) (*metav1.PatchOptions, error) {
	options := &metav1.PatchOptions{}
	err := parseOptions(query, "PatchOptions", options, func(in *url.Values, out *metav1.PatchOptions) error {
		return metav1.Convert_url_Values_To_v1_PatchOptions(in, out, nil)
	}, func(o *metav1.PatchOptions) field.ErrorList { return validation.ValidatePatchOptions(o, patchType) })
	options.TypeMeta = optionsType("PatchOptions")
	return options, err
}

// parseDeleteOptions parses the options of a deletion from the body, or from the query when there is no body.
func (s *Server) parseDeleteOptions(req *request) (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	body, err := s.readBody(req)
	if err != nil {
		return nil, err
	}
	query := req.query
	if len(body) > 0 {
		if err := req.decodeDeleteOptions(body, options); err != nil {
			return nil, err
		}
		if req.event.WantsRequest() {
			s.auditDeleteOptions(req, options)
		}
		query = nil
	}
	err = parseOptions(query, "DeleteOptions", options, func(in *url.Values, out *metav1.DeleteOptions) error {
		return metav1.Convert_url_Values_To_v1_DeleteOptions(in, out, nil)
	}, validation.ValidateDeleteOptions)
	options.TypeMeta = optionsType("DeleteOptions")
	return options, err
}

func (r *request) decodeDeleteOptions(body []byte, options *metav1.DeleteOptions) error {
	f, err := r.deleteOptionsFormat()
	if err != nil {
		return err
	}
	switch f {
	case formatProtobuf:
		e, err := openEnvelope(body)
		if err == nil {
			err = options.Unmarshal(e.raw)
		}
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		options.Kind = e.kind
	default:
		data := body
		if f == formatYAML {
			if data, err = yaml.YAMLToJSON(body); err != nil {
				return apierrors.NewBadRequest(err.Error())
			}
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, options); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	// Clients send DeleteOptions in the group of the resource they delete.
	if options.Kind != "" && options.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	return nil
}

// deleteOptionsFormat is the format of DeleteOptions in the body: they have a protobuf encoding even if the resource has none.
func (r *request) deleteOptionsFormat() (format, error) {
	if r.Header.Get("Content-Type") == mediaProtobuf {
		return formatProtobuf, nil
	}
	return r.contentFormat()
}

// isDryRun reports whether the dryRun option is set. Its values need not be checked: validation allows only "All".
func isDryRun(dryRun []string) bool { return len(dryRun) > 0 }

// fieldValidation is the parameter of that name: whether unknown and duplicate fields are ignored, cause warnings, or are errors.
type fieldValidation string

// fieldValidationIgnore ignores unknown and duplicate fields.
const fieldValidationIgnore fieldValidation = metav1.FieldValidationIgnore

// parseFieldValidation parses the fieldValidation parameter; the default is Warn.
func parseFieldValidation(option string) fieldValidation {
	if option == "" {
		return metav1.FieldValidationWarn
	}
	return fieldValidation(option)
}

func (f fieldValidation) enabled() bool { return f != metav1.FieldValidationIgnore }

// report returns strict decoding errors, or warns of them.
func (f fieldValidation) report(strictErrs []error, warn func(string)) error {
	switch {
	case len(strictErrs) == 0 || !f.enabled():
		return nil
	case f == metav1.FieldValidationWarn:
		warnOfStrictErrors(strictErrs, warn)
		return nil
	}
	return runtime.NewStrictDecodingError(strictErrs)
}

// warnOfStrictErrors adds a warning for each error. YAML errors come as one text with a line for each.
func warnOfStrictErrors(strictErrs []error, warn func(string)) {
	for _, err := range strictErrs {
		text := err.Error()
		short, ok := strings.CutPrefix(text, "yaml: unmarshal errors:\n")
		if !ok {
			short, ok = strings.CutPrefix(text, "error converting YAML to JSON: yaml: unmarshal errors:\n")
		}
		if !ok {
			warn(text)
			continue
		}
		for _, line := range strings.Split(short, "\n") {
			warn(strings.TrimSpace(line))
		}
	}
}

// decodeBody decodes the request's body into an object of the storage version and sets its defaults. A custom resource stays in the
// version of the request.
func (s *Server) decodeBody(req *request, body []byte, directive fieldValidation) (kind.Object, error) {
	f, err := req.contentFormat()
	if err != nil {
		return nil, err
	}
	return s.decodeObject(req, body, f, directive)
}

func (s *Server) decodeObject(req *request, body []byte, f format, directive fieldValidation) (kind.Object, error) {
	obj := req.res.newObject()
	if err := s.decodeInto(obj, requestBody{data: body, format: f, want: req.res.gvk, fieldValidation: directive, res: req.res}, req.warn); err != nil {
		return nil, err
	}
	return req.res.toStorageVersion(obj)
}

// toStorageVersion sets the defaults of an object of the served version and converts it to the storage version.
func (r *resource) toStorageVersion(obj kind.Object) (kind.Object, error) {
	if r.version.Default != nil {
		r.version.Default(obj)
	}
	if r.version.ToStorageVersion != nil {
		converted, err := r.version.ToStorageVersion(obj)
		if err != nil {
			return nil, err
		}
		obj = converted
	}
	if r.kind.Default != nil {
		r.kind.Default(obj)
	}
	kind.ClearType(obj)
	return obj, nil
}

// requestBody is a body to decode and what is known about it.
type requestBody struct {
	data            []byte
	format          format
	want            schema.GroupVersionKind
	fieldValidation fieldValidation
	res             *resource // nil when the body is not an object of the resource itself
}

// decodeInto decodes a body into an object of the kind that is wanted.
func (s *Server) decodeInto(obj kind.Object, body requestBody, warn func(string)) error {
	var strictErrs []error
	var err error
	data, want, res := body.data, body.want, body.res
	if body.format == formatProtobuf {
		err = s.decodeProtobuf(obj, data, want)
	} else {
		if body.format == formatYAML {
			if data, err = yaml.YAMLToJSON(body.data); err != nil {
				return errUnrecognized(err, want, body.data)
			}
			if body.fieldValidation.enabled() {
				if _, err := yaml.YAMLToJSONStrict(body.data); err != nil {
					strictErrs = append(strictErrs, err)
				}
			}
		}
		body.data = data
		var jsonErrs []error
		jsonErrs, err = s.decodeJSON(obj, body)
		strictErrs = append(strictErrs, jsonErrs...)
	}
	if err != nil {
		return err
	}
	if res != nil && res.kind.Prune != nil {
		unknown, err := res.kind.Prune(obj, res.version)
		if err != nil {
			return errCannotHandle(want, want.Kind, err)
		}
		for _, path := range unknown {
			strictErrs = append(strictErrs, fmt.Errorf("unknown field %q", path))
		}
	}
	if err := body.fieldValidation.report(strictErrs, warn); err != nil {
		return errCannotHandle(want, want.Kind, err)
	}
	return nil
}

// decodeJSON decodes JSON into obj and checks that its kind is the wanted one or empty. The kind of a custom resource must be set; another kind in
// the same version is left to validation.
func (s *Server) decodeJSON(obj kind.Object, body requestBody) ([]error, error) {
	data, want := body.data, body.want
	strictErrs, err := body.res.unmarshalStrict(data, obj, body.fieldValidation)
	if err != nil {
		// A wrong kind explains the failure better than a field that does not fit.
		actual, readErr := apijson.DefaultMetaFactory.Interpret(data)
		if readErr != nil {
			return nil, errUnrecognized(readErr, want, data)
		}
		if err := s.checkKind(*actual, want); err != nil {
			return nil, err
		}
		return nil, errCannotHandle(want, want.Kind, err)
	}
	apiVersion, kindName := typeOf(obj)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, errUnrecognized(err, want, data)
	}
	if _, isUnstructured := obj.(runtime.Unstructured); isUnstructured {
		switch {
		case kindName == "":
			return nil, errUnrecognized(runtime.NewMissingKindErr(string(data)), want, data)
		case gv != want.GroupVersion():
			return nil, errWrongVersion(gv, want)
		}
		return strictErrs, nil
	}
	if err := s.checkKind(gv.WithKind(kindName), want); err != nil {
		return nil, err
	}
	return strictErrs, nil
}

func typeOf(obj kind.Object) (apiVersion, kindName string) {
	return obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
}

// unmarshalStrict is the function of that name for objects of the resource, which is nil for others.
func (r *resource) unmarshalStrict(data []byte, obj kind.Object, directive fieldValidation) (strictErrs []error, err error) {
	if r == nil || r.kind.DecodeJSON == nil || !r.stored() {
		return unmarshalStrict(data, obj, directive)
	}
	if err := checkJSONNesting(data, obj); err != nil {
		return nil, err
	}
	if r.kind.DecodeJSON(data, obj) {
		return nil, nil
	}
	return unmarshalStrict(data, obj, directive)
}

// unmarshalStrict decodes JSON and returns the strict decoding errors unless validation is disabled.
func unmarshalStrict(data []byte, obj kind.Object, directive fieldValidation) (strictErrs []error, err error) {
	if unstructured, ok := obj.(runtime.Unstructured); ok {
		content := map[string]any{}
		if directive.enabled() {
			strictErrs, err = kjson.UnmarshalStrict(data, &content)
		} else {
			err = kjson.UnmarshalCaseSensitivePreserveInts(data, &content)
		}
		unstructured.SetUnstructuredContent(content)
		return strictErrs, err
	}
	if err := checkJSONNesting(data, obj); err != nil {
		return nil, err
	}
	if err := checkJSONQuantities(data, obj); err != nil {
		return nil, err
	}
	if directive.enabled() {
		return kjson.UnmarshalStrict(data, obj)
	}
	return nil, kjson.UnmarshalCaseSensitivePreserveInts(data, obj)
}

func (s *Server) decodeProtobuf(obj kind.Object, body []byte, want schema.GroupVersionKind) error {
	e, err := openEnvelope(body)
	if err != nil {
		return errUnrecognized(err, want, body)
	}
	gv, err := schema.ParseGroupVersion(e.apiVersion)
	if err != nil {
		return errUnrecognized(err, want, body)
	}
	if err := s.checkKind(gv.WithKind(e.kind), want); err != nil {
		return err
	}
	if err := checkProtobufNesting(e.raw, obj); err != nil {
		return errCannotHandle(want, want.Kind, err)
	}
	if err := checkProtobufQuantities(e.raw, obj); err != nil {
		return errCannotHandle(want, want.Kind, err)
	}
	if _, err := unmarshalMessage(e.raw, obj); err != nil {
		return errCannotHandle(want, want.Kind, err)
	}
	return nil
}

// openEnvelope checks the protobuf magic and parses the runtime.Unknown around an object.
func openEnvelope(body []byte) (envelope, error) {
	switch {
	case len(body) == 0:
		return envelope{}, errors.New("empty data")
	case !bytes.HasPrefix(body, envelopeMagic):
		return envelope{}, fmt.Errorf("provided data does not appear to be a protobuf message, expected prefix %v", envelopeMagic)
	case len(body) == len(envelopeMagic):
		return envelope{}, errors.New("empty body")
	}
	return parseEnvelope(body)
}

// schemeName is the name of upstream's scheme, the source position of its creation, which is part of upstream's error messages.
const schemeName = "pkg/api/legacyscheme/scheme.go:30"

// checkKind compares the kind in a body with the kind of the endpoint. Empty fields default to the endpoint's.
func (s *Server) checkKind(actual, want schema.GroupVersionKind) error {
	if actual.Kind == "" {
		actual.Kind = want.Kind
	}
	if actual.Version == "" && (actual.Group == "" || actual.Group == want.Group) {
		actual.Group, actual.Version = want.Group, want.Version
	}
	if actual == want {
		return nil
	}
	if !s.config.Scheme.Recognizes(actual) {
		return errCannotHandle(actual, want.Kind, runtime.NewNotRegisteredErrForKind(schemeName, actual))
	}
	if actual.Kind != want.Kind {
		return errCannotHandle(actual, want.Kind, fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion",
			actual.Version, actual.Kind, internalPackage(want.Group), want.Kind))
	}
	return errWrongVersion(actual.GroupVersion(), want)
}

func errWrongVersion(actual schema.GroupVersion, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", actual, want.GroupVersion()))
}

// internalPackage is the name of the group's internal package in upstream's message.
func internalPackage(group string) string {
	if group == "" {
		return "core"
	}
	first, _, _ := strings.Cut(group, ".")
	return first
}

func errCannotHandle(actual schema.GroupVersionKind, want string, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", actual.Kind, actual.Version, want, err))
}

func errUnrecognized(err error, want schema.GroupVersionKind, body []byte) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want.Kind, err, summary(body)))
}

// summary is the beginning of a body, for messages.
func summary(body []byte) string {
	const longest = 30
	if len(body) == 0 {
		return "<empty>"
	}
	show := func(b []byte) string { return hex.EncodeToString(b) }
	if body[0] == '{' {
		show = func(b []byte) string { return string(b) }
	}
	if len(body) > longest {
		return show(body[:longest]) + " ..."
	}
	return show(body)
}
