package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// beginAudit records stage RequestReceived, once the user is known.
func (s *Server) beginAudit(req *request, id *authn.Identity) error {
	if s.config.Audit == nil {
		return nil
	}
	req.newEvent(s)
	for key, value := range id.Annotations {
		req.event.Annotate(key, value)
	}
	if !req.event.RecordReceived(req.longRunning) {
		return apierrors.NewInternalError(errors.New("failed to store audit event"))
	}
	if req.event.WantsResponse() && !req.longRunning {
		// The response is recorded as it is sent, so it must not be compressed.
		req.Header.Del("Accept-Encoding")
		req.w.startRecording()
	}
	return nil
}

// auditUnauthenticated creates the audit event of a request whose authentication failed. Only its stage ResponseComplete is recorded.
func (s *Server) auditUnauthenticated(req *request) {
	if s.config.Audit != nil {
		req.newEvent(s)
		req.event.Unauthenticated()
	}
}

func (r *request) newEvent(s *Server) {
	a := r.info.attributes(nil)
	a.User = r.user
	r.event = s.config.Audit.Begin(r.Request, r.id, r.start, &a)
	r.w.event = r.event
}

// auditDecision records the authorization decision and its reason.
func (r *request) auditDecision(decision, reason string) {
	r.event.Annotate("authorization.k8s.io/decision", decision)
	r.event.Annotate("authorization.k8s.io/reason", reason)
}

// auditObject records the object that a client sent, after defaulting and before admission. If gvk is the resource's own, obj is in the
// storage version and is converted; otherwise it is in gvk already.
func (s *Server) auditObject(req *request, obj kind.Object, gvk schema.GroupVersionKind) {
	req.event.SetObjectRef(obj)
	if !req.event.WantsRequest() {
		return
	}
	versioned := obj
	if gvk == req.res.gvk {
		var err error
		if versioned, err = req.res.fromStorageVersion(req.ctx, obj); err != nil {
			s.log.Warn("failed to record request object in audit event", "path", req.URL.Path, "error", err)
			return
		}
	}
	s.auditRequestObject(req, versioned, gvk)
}

// auditDeleteOptions records the options of a deletion as upstream does: with its internal type.
func (s *Server) auditDeleteOptions(req *request, options *metav1.DeleteOptions) {
	internal := *options
	internal.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "meta.k8s.io/__internal"}
	s.auditRequestObject(req, &internal, internal.GroupVersionKind())
}

func (s *Server) auditRequestObject(req *request, obj runtime.Object, gvk schema.GroupVersionKind) {
	body, err := appendObject(nil, obj, gvk, formatJSON)
	if err != nil {
		s.log.Warn("failed to record request object in audit event", "path", req.URL.Path, "error", err)
		return
	}
	req.event.SetRequestObject(body)
}

// auditPatch records a patch whose syntax has been checked.
func (p *patcher) auditPatch() {
	if !p.req.event.WantsRequest() {
		return
	}
	body := p.body
	if p.patchType == types.ApplyYAMLPatchType {
		var err error
		if body, err = apiyaml.ToJSON(body); err != nil {
			return
		}
	}
	p.req.event.SetRequestObject(body)
}

// auditStatus records a Status that is about to be sent, also for long-running requests, of which nothing else is recorded.
func (s *Server) auditStatus(req *request, status *metav1.Status) {
	req.event.SetStatus(status)
	if !req.event.WantsResponse() {
		return
	}
	if body, err := appendObject(nil, status, metav1.Unversioned.WithKind("Status"), formatJSON); err == nil {
		req.event.SetResponseObject(body)
	}
}

// finishAudit records the response.
func (s *Server) finishAudit(req *request) {
	if req.event == nil {
		return
	}
	if len(req.w.recorded) > 0 {
		// The responses of aggregated API servers are recorded by them; a Status may be local.
		local := req.res != nil || !req.info.isResource()
		body, err := s.responseJSON(req.w.Header(), req.w.recorded)
		if bodyKind := responseKind(body); err == nil && (bodyKind == "Status" || bodyKind != "" && local) {
			req.event.SetResponseObject(body)
		} else if err != nil {
			s.log.Warn("failed to record response object in audit event", "path", req.URL.Path, "error", err)
		}
	}
	if res := req.res; res != nil && res.deprecation != "" {
		req.event.Annotate("k8s.io/deprecated", "true")
		if release := removedRelease(res.newObject()); release != "" {
			req.event.Annotate("k8s.io/removed-release", release)
		}
	}
	req.event.Complete()
}

// responseJSON converts a response body to JSON.
func (s *Server) responseJSON(header http.Header, body []byte) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return nil, nil // not an API object
	}
	switch mediaType {
	case mediaJSON:
		return body, nil
	case mediaYAML:
		return yaml.YAMLToJSON(body)
	case mediaProtobuf:
		e, err := openEnvelope(body)
		if err != nil {
			return nil, err
		}
		gvk := schema.FromAPIVersionAndKind(e.apiVersion, e.kind)
		obj, err := s.newResponseObject(gvk)
		if err != nil {
			return nil, err
		}
		if err := obj.Unmarshal(e.raw); err != nil {
			return nil, err
		}
		return appendObject(nil, obj, gvk, formatJSON)
	}
	return nil, nil
}

// protoObject is an object with a protobuf encoding.
type protoObject interface {
	runtime.Object
	Unmarshal(data []byte) error
}

func (s *Server) newResponseObject(gvk schema.GroupVersionKind) (protoObject, error) {
	if gvk == metav1.Unversioned.WithKind("Status") {
		return &metav1.Status{}, nil
	}
	if gvk.Group == metav1.GroupName {
		switch gvk.Kind {
		case "PartialObjectMetadata":
			return &metav1.PartialObjectMetadata{}, nil
		case "PartialObjectMetadataList":
			return &metav1.PartialObjectMetadataList{}, nil
		}
	}
	obj, err := s.config.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	typed, ok := obj.(protoObject)
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf encoding", gvk)
	}
	return typed, nil
}

// responseKind is the kind of a JSON object, empty for documents such as /version.
func responseKind(body []byte) string {
	var typeMeta metav1.TypeMeta
	if len(body) == 0 || json.Unmarshal(body, &typeMeta) != nil {
		return ""
	}
	return typeMeta.Kind
}
